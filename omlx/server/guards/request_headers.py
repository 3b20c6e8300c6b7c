"""The request headers that any route takes: priority, deadline and context go into the request's record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omlx.record import current
from omlx.server.errors import Problem
from omlx.server.guards.guard import PASS, Guard, RequestHead, Verdict, refusal
from omlx.server.request_headers import RequestHeaderError, read_request_headers
from omlx.server.route_info import RouteTable

if TYPE_CHECKING:
    from litestar.types import ASGIApp


class HeaderReader(Guard):
    """Refuses headers that cannot be read."""

    def __init__(self, app: ASGIApp, routes: RouteTable) -> None:
        super().__init__(app)
        self._routes = routes

    def judge(self, head: RequestHead) -> Verdict:
        record = current()
        try:
            record.priority, record.deadline_s, record.num_ctx = read_request_headers(head.fields)
        except RequestHeaderError as error:
            return refusal(self._routes, head.path, Problem(400, str(error)))
        return PASS
