"""The *request log*, the outermost middleware: gives each request its id, its record and its line in the log."""

from __future__ import annotations

import itertools
import re
import secrets
from typing import TYPE_CHECKING, Any

from omlx.server.log import logger, spell
from omlx.server.route_info import RouteTable

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Receive, Send

    from omlx.server.telemetry import Telemetry

_ID_HEADER, _TRACE = b"x-request-id", b"traceparent"
_PLAIN_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""What a caller may name its request; anything else gets a name of ours."""


class RequestLog:
    """Opens a request's record, which is the current one within `app`, and closes it when the answer is complete."""

    def __init__(self, app: ASGIApp, routes: RouteTable, telemetry: Telemetry) -> None:
        self._app = app
        self._routes = routes
        self._telemetry = telemetry
        self._ids = itertools.count(1)
        self._prefix = f"r{secrets.token_hex(2)}"
        """Tells the requests of one run of the server from those of the next."""

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method, path = scope["method"], scope["path"]
        fields = {name: value.decode("latin-1") for name, value in scope["headers"] if name in {_ID_HEADER, _TRACE}}
        requested = fields.get(_ID_HEADER, "")
        name = requested if _PLAIN_ID.fullmatch(requested) else f"{self._prefix}-{next(self._ids)}"
        scope["omlx.request_id"] = name
        number, record = self._telemetry.open(name, scope, self._routes.protocol(path))
        record.traceparent = fields.get(_TRACE, "")
        status, complete = 0, False

        async def watched(message: Any) -> None:
            nonlocal status, complete
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (_ID_HEADER, name.encode())]
            else:
                complete = not message.get("more_body", False)
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            record.left = not complete or status == 499
            left = ", the client left" if record.left else ""
            self._telemetry.end(number, record, route=scope.get("path_template", "other"), status=status or 499)
            logger.info("%s %s %s %s%s", method, path, status, spell(record.seconds), left)
