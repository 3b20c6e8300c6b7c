"""The API key check: who may call, and how often, where the server asks for a key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omlx.record import current
from omlx.server.errors import Problem
from omlx.server.guards.guard import PASS, Guard, RequestHead, Verdict, refusal
from omlx.server.keys import Keys
from omlx.server.route_info import RouteTable

if TYPE_CHECKING:
    from litestar.types import ASGIApp

_UNKNOWN_KEY = Problem(401, "a valid API key is required", {"code": "invalid_api_key"})
_TOO_OFTEN = Problem(429, "this API key has used up its requests for now", {"code": "rate_limit_exceeded"})


class KeyCheck(Guard):
    """Refuses requests without a known key, or beyond the rate of their key. The record gets the key's name."""

    def __init__(self, app: ASGIApp, keys: Keys, routes: RouteTable) -> None:
        super().__init__(app)
        self._keys = keys
        self._routes = routes

    def judge(self, head: RequestHead) -> Verdict:
        fields = head.fields
        if not self._routes.needs_key(head.path):
            return PASS
        admission = self._keys.admit(fields.get(b"authorization", ""), fields.get(b"x-api-key", ""))
        current().key = admission.name
        if not admission.known:
            return refusal(self._routes, head.path, _UNKNOWN_KEY, ("www-authenticate", "Bearer"))
        if admission.retry_after:
            return refusal(self._routes, head.path, _TOO_OFTEN, ("retry-after", str(admission.retry_after)))
        return PASS
