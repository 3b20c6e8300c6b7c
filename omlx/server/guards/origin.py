"""The Origin check: which origins of browser pages may call (CORS)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omlx.server.guards.guard import PASS, Guard, RequestHead, Verdict
from omlx.server.origins import Origins

if TYPE_CHECKING:
    from litestar.types import ASGIApp

_READING = {"GET", "HEAD", "OPTIONS"}


class OriginCheck(Guard):
    """Refuses foreign origins, answers preflights, and tells browsers what is allowed."""

    def __init__(self, app: ASGIApp, origins: Origins) -> None:
        super().__init__(app)
        self._origins = origins

    def judge(self, head: RequestHead) -> Verdict:
        origin = head.fields.get(b"origin")
        if origin is None or origin in {f"http://{head.host}", f"https://{head.host}"}:
            return PASS
        if not self._origins.allow(origin):
            return Verdict(403)
        headers = self._origins.headers(origin, preflight=head.method == "OPTIONS")
        if head.method == "OPTIONS":
            return Verdict(204, headers)
        # Ollama's clients in browsers change models through Ollama's routes; ours are for our own page.
        if head.path.startswith("/api/omlx/") and head.method not in _READING:
            return Verdict(403)
        return Verdict(headers=headers)
