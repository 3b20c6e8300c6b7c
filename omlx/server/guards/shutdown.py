"""The end of the server: requests that it has not begun to answer get a 503 instead of a broken connection."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from omlx.pool.errors import SHUTTING_DOWN
from omlx.server.errors import Problem
from omlx.server.guards.guard import answer, refusal
from omlx.server.route_info import RouteTable

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Receive, Send


class ShutdownAnswer:
    """Middleware: answers requests that are cancelled because the server ends."""

    def __init__(self, app: ASGIApp, routes: RouteTable) -> None:
        self._app = app
        self._routes = routes

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        started = False

        async def send_noted(message: Any) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, send_noted)
        except asyncio.CancelledError:
            if started or scope["type"] != "http":
                raise
            problem = Problem(503, SHUTTING_DOWN)
            await answer(send, refusal(self._routes, scope["path"], problem, ("retry-after", "1")))
