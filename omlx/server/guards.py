"""The *gate*: what every request passes before a route sees it.

In this order, as in Ollama: the Origin check (CORS), the Host check against DNS rebinding, the API key where one is
asked for, then the router's own answers (404 and 405, redirects for a trailing slash). Rules are compiled once from
settings; deciding is pure, `Gate` only acts on the decision.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from omlx.pool.errors import SHUTTING_DOWN
from omlx.record import current
from omlx.server.error_formats import error_text
from omlx.server.errors import JSON_TYPE, Problem
from omlx.server.hosts import Hosts
from omlx.server.keys import WELCOME, Admission, Keys, note
from omlx.server.origins import Origins
from omlx.server.request_headers import REQUEST_HEADERS, RequestHeaderError, read_request_headers
from omlx.server.route_info import RouteTable

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Receive, Send

_LOOKED_AT = {b"host", b"origin", b"authorization", b"x-api-key", *REQUEST_HEADERS}
_PLAIN_IN_PATHS = "/:@!$&'()*+,;="
"""What need not be escaped there, beside letters, digits and "-._~"."""
_READING = {"GET", "HEAD", "OPTIONS"}

_UNKNOWN_KEY = Problem(401, "a valid API key is required", {"code": "invalid_api_key"})
_TOO_OFTEN = Problem(429, "this API key has used up its requests for now", {"code": "rate_limit_exceeded"})


class Verdict(NamedTuple):
    """What the gate does with a request: answer it itself (`status`), or pass it on and add `headers`."""

    status: int = 0
    headers: tuple[tuple[str, str], ...] = ()
    text: str = ""


class Policy(NamedTuple):
    """The compiled rules."""

    origins: Origins
    hosts: Hosts
    routes: RouteTable

    def judge(
        self, method: str, path: str, query: str, host: str, origin: str | None, admission: Admission = WELCOME
    ) -> Verdict:
        cors: tuple[tuple[str, str], ...] = ()
        if origin is not None and origin not in {f"http://{host}", f"https://{host}"}:
            if not self.origins.allow(origin):
                return Verdict(403)
            cors = self.origins.headers(origin, preflight=method == "OPTIONS")
            if method == "OPTIONS":
                return Verdict(204, cors)
            # Ollama's clients in browsers change models through Ollama's routes; ours are for our own page.
            if path.startswith("/api/omlx/") and method not in _READING:
                return Verdict(403)
        if not self.hosts.allow(host):
            return Verdict(403)
        if method == "OPTIONS" and self.hosts.checked and self.hosts.named(host):
            return Verdict(204, cors)
        if not admission.known:
            return Verdict(401, (*cors, ("www-authenticate", "Bearer")), self._error(path, _UNKNOWN_KEY))
        if admission.retry_after:
            return Verdict(429, (*cors, ("retry-after", str(admission.retry_after))), self._error(path, _TOO_OFTEN))
        return self._route(method, path, query, cors)

    def _route(self, method: str, path: str, query: str, cors: tuple[tuple[str, str], ...]) -> Verdict:
        allowed = self.routes.methods(path)
        if method in allowed:
            return Verdict(headers=cors)
        if allowed:
            return Verdict(
                405, (*cors, ("allow", ", ".join(allowed))), self._not_here(path, 405, "405 method not allowed")
            )
        bare = path.rstrip("/")
        if path == bare + "/" and method in self.routes.methods(bare):
            # The path came decoded: it may hold anything, line ends too, and a header takes neither those nor "€".
            place = quote(bare, safe=_PLAIN_IN_PATHS) + (f"?{query}" if query else "")
            return Verdict(301 if method == "GET" else 307, (*cors, ("location", place)))
        return Verdict(404, cors, self._not_here(path, 404, "404 page not found"))

    def _not_here(self, path: str, status: int, text: str) -> str:
        """Plain text, as in Ollama; OpenAI's and Anthropic's clients are told in their own format what is missing."""
        if self.routes.protocol(path) in {"ollama", "omlx"}:
            return text
        return self._error(path, Problem(status, f"{text}: {path}"))

    def _error(self, path: str, problem: Problem) -> str:
        return error_text(self.routes.protocol(path), problem)


class Gate:
    """Applies the policy: answers what it refuses, and hands the rest to `app` with the headers that CORS wants."""

    def __init__(self, app: ASGIApp, policy: Policy, keys: Keys) -> None:
        self._app = app
        self._policy = policy
        self._keys = keys

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        verdict = self._judge(scope)
        extra = [(field.encode(), value.encode("latin-1")) for field, value in verdict.headers]
        started = False

        async def headed(message: Any) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message["headers"], *extra]
            await send(message)

        try:
            if verdict.status:
                await _answer(headed, verdict)
            else:
                await self._app(scope, receive, headed)
        except asyncio.CancelledError:  # the server ends
            if started:
                raise
            ending = error_text(self._policy.routes.protocol(scope["path"]), Problem(503, SHUTTING_DOWN))
            extra.append((b"retry-after", b"1"))
            await _answer(headed, Verdict(503, text=ending))

    def _judge(self, scope: Any) -> Verdict:
        """The verdict; what the headers of a request ask for goes into its record."""
        path, record = scope["path"], current()
        fields = {name: value.decode("latin-1") for name, value in scope["headers"] if name in _LOOKED_AT}
        admission = self._keys.admit(path, fields.get(b"authorization", ""), fields.get(b"x-api-key", ""))
        note(scope, admission)
        record.key = admission.name
        hosts = sum(name == b"host" for name, _ in scope["headers"])
        if hosts > 1:
            # A proxy in front may have looked at another of them.
            return Verdict(400, text="400 Bad Request: too many Host headers")
        if hosts == 0 and scope["http_version"] == "1.1":
            return Verdict(400, text="400 Bad Request: missing required Host header")
        query = scope["query_string"].decode("latin-1")
        verdict = self._policy.judge(
            scope["method"], path, query, fields.get(b"host", ""), fields.get(b"origin"), admission
        )
        if not verdict.status:
            try:
                record.priority, record.deadline_s, record.num_ctx = read_request_headers(fields)
            except RequestHeaderError as error:
                text = error_text(self._policy.routes.protocol(path), Problem(400, str(error)))
                return Verdict(400, verdict.headers, text)
        return verdict


async def _answer(send: Send, verdict: Verdict) -> None:
    text = verdict.text.encode()
    headers = [(b"content-length", str(len(text)).encode())] if verdict.status != 204 else []
    if text:
        headers.append((b"content-type", JSON_TYPE.encode() if verdict.text.startswith("{") else b"text/plain"))
    await send({"type": "http.response.start", "status": verdict.status, "headers": headers})
    await send({"type": "http.response.body", "body": text, "more_body": False})
