"""The router's own answers, as those of Go's router: 404, 405, and redirects for a trailing slash."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from omlx.server.errors import Problem
from omlx.server.guards.guard import PASS, Guard, RequestHead, Verdict, refusal
from omlx.server.route_info import RouteTable

if TYPE_CHECKING:
    from litestar.types import ASGIApp

_PLAIN_IN_PATHS = "/:@!$&'()*+,;="
"""Characters that paths need not escape, besides letters, digits and "-._~"."""


class RouteCheck(Guard):
    """Answers requests that have no route."""

    def __init__(self, app: ASGIApp, routes: RouteTable) -> None:
        super().__init__(app)
        self._routes = routes

    def judge(self, head: RequestHead) -> Verdict:
        method, path = head.method, head.path
        allowed = self._routes.methods(path)
        if method in allowed:
            return PASS
        if allowed:
            return self._not_here(path, 405, "405 method not allowed", ("allow", ", ".join(allowed)))
        bare = path.rstrip("/")
        if path == bare + "/" and method in self._routes.methods(bare):
            # The path is decoded: it may hold line ends or "€", which a header must not.
            place = quote(bare, safe=_PLAIN_IN_PATHS) + (f"?{head.query}" if head.query else "")
            return Verdict(301 if method == "GET" else 307, (("location", place),))
        return self._not_here(path, 404, "404 page not found")

    def _not_here(self, path: str, status: int, text: str, *headers: tuple[str, str]) -> Verdict:
        """Plain text, as in Ollama; OpenAI's and Anthropic's clients are told in their own format what is missing."""
        if self._routes.protocol(path) in {"ollama", "omlx"}:
            return Verdict(status, headers, text)
        return refusal(self._routes, path, Problem(status, f"{text}: {path}"), *headers)
