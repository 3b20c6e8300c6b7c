"""The *gate*: what every request passes before a route sees it.

In this order, as in Ollama: the Origin check (CORS), the Host check against DNS rebinding, the API key where one is
asked for, then the router's own answers (404 and 405, redirects for a trailing slash). The gate also
gives each request its id and writes its line in the log. Rules are compiled once from settings; deciding is pure,
`Gate` only acts on the decision.
"""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import re
import secrets
import socket
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from omlx.pool.errors import SHUTTING_DOWN
from omlx.server.body_memory import BodyMemory, BodyReservation
from omlx.server.error_formats import error_text
from omlx.server.errors import JSON_TYPE, Problem
from omlx.server.keys import WELCOME, Admission, Keys, is_loopback, note
from omlx.server.log import logger, spell
from omlx.server.request_headers import REQUEST_HEADERS, RequestHeaderError, read_request_headers
from omlx.server.route_info import RouteTable

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Receive, Send

    from omlx.server.telemetry import Telemetry

_ID_HEADER = b"x-request-id"
_PLAIN_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""What a caller may name its request; anything else gets a name of ours."""
_LOOKED_AT = {b"host", b"origin", b"authorization", b"x-api-key", b"traceparent", _ID_HEADER, *REQUEST_HEADERS}
_PLAIN_IN_PATHS = "/:@!$&'()*+,;="
"""What need not be escaped there, beside letters, digits and "-._~"."""
_READING = {"GET", "HEAD", "OPTIONS"}

_EXTENSIONS = ("chrome-extension://", "safari-extension://", "moz-extension://", "ms-browser-extension://")
_BUILT_IN = (
    *(
        f"{scheme}://{host}{port}"
        for host in ("localhost", "127.0.0.1", "0.0.0.0")  # noqa: S104 (an origin; nothing is bound)
        for port in ("", ":*")
        for scheme in ("http", "https")
    ),
    "app://*",
    "file://*",
    "tauri://*",
    "vscode-webview://*",
    "vscode-file://*",
)
_STAINLESS = ("Arch", "Async", "Custom-Poll-Interval", "Helper-Method", "Lang", "Os", "Package-Version", "Poll-Helper",
              "Retry-Count", "Runtime", "Runtime-Version", "Timeout")  # fmt: skip
_OWN_HEADERS = ("X-Api-Key", "Anthropic-Version", "Anthropic-Beta", "Anthropic-Dangerous-Direct-Browser-Access",
                "X-Request-Id", "X-Omlx-Priority", "X-Omlx-Deadline", "X-Omlx-Num-Ctx")  # fmt: skip
"""What browsers send beside Ollama's list, in the Anthropic protocol and for what is oMLX's own."""
_PREFLIGHT = {
    "access-control-allow-methods": "GET,POST,PUT,PATCH,DELETE,HEAD,OPTIONS",
    "access-control-allow-headers": ",".join(
        ("Authorization", "Content-Type", "User-Agent", "Accept", "X-Requested-With", "Openai-Beta",
         *(f"X-Stainless-{name}" for name in _STAINLESS), *_OWN_HEADERS)
    ),
    "access-control-max-age": "43200",
}  # fmt: skip
_UNKNOWN_KEY = Problem(401, "a valid API key is required", {"code": "invalid_api_key"})
_TOO_OFTEN = Problem(429, "this API key has used up its requests for now", {"code": "rate_limit_exceeded"})
_PREFLIGHT_VARY = ("Origin", "Access-Control-Request-Method", "Access-Control-Request-Headers")


class OriginError(ValueError):
    """An allowed origin is not written as Ollama wants it; the message names it."""


class Origins:
    """The browser origins that may call this server. Raises OriginError for an entry that cannot be used."""

    def __init__(self, entries: Iterable[str]) -> None:
        self.exact: set[str] = set()
        self.wild: list[tuple[str, str]] = []
        self.patterns: list[re.Pattern[str]] = []
        for entry in (*entries, *_BUILT_IN):
            self._add(entry)

    @property
    def everyone(self) -> bool:
        return ("", "") in self.wild

    def _add(self, entry: str) -> None:
        if len(entry) > 2 and entry.startswith("/") and entry.endswith("/"):
            try:
                self.patterns.append(re.compile(entry[1:-1]))
            except re.error as error:
                raise OriginError(f'the origin "{entry}" is no regular expression: {error}') from None
            return
        text = entry.lower()
        if text.count("*") > 1:
            raise OriginError(f'the origin "{entry}" holds more than one *')
        if "*" in text:
            before, _, behind = text.partition("*")
            self.wild.append((before, behind))
        elif text.startswith(("http://", "https://", *_EXTENSIONS)):
            self.exact.add(text)
        else:
            raise OriginError(f'the origin "{entry}" must start with http://, https:// or a browser extension scheme')

    def allow(self, origin: str) -> bool:
        text = origin.lower()
        return (
            text in self.exact
            or any(text.startswith(before) and text.endswith(behind) for before, behind in self.wild)
            or any(pattern.search(origin) for pattern in self.patterns)
        )


class Hosts:
    """Which Host headers a server bound to loopback answers; bound to anything else it answers all.

    `address`: of the socket that listens. `name`: what the setting calls it, which is a name of the server too.
    """

    def __init__(self, address: str, name: str = "") -> None:
        self.checked = is_loopback(address)
        self.own_names = {"", "localhost", socket.gethostname().lower()}
        if not is_address(name):
            self.own_names.add(name.lower())

    def allow(self, header: str) -> bool:
        if not self.checked:
            return True
        host = split_port(header).lower()
        return host in self.own_names or self.named(header) or (is_address(host) and _is_local(host))

    def named(self, header: str) -> bool:
        """Allowed as a *name* (an address does not count)."""
        host = split_port(header).lower()
        return (host in self.own_names and not is_address(host)) or host.endswith((".localhost", ".local", ".internal"))


def split_port(header: str) -> str:
    """Host of a Host header, without port and brackets."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0] if header.count(":") == 1 else header


def is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_local(host: str) -> bool:
    address = ipaddress.ip_address(host)
    if address.is_loopback or address.is_private or address.is_unspecified:
        return True
    import psutil  # rarely needed, and not free to import

    own = (entry.address.partition("%")[0] for entries in psutil.net_if_addrs().values() for entry in entries)
    return any(is_address(text) and ipaddress.ip_address(text) == address for text in own)


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
            cors = self._cors(origin, preflight=method == "OPTIONS")
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

    def _cors(self, origin: str, *, preflight: bool) -> tuple[tuple[str, str], ...]:
        everyone = self.origins.everyone
        headers = [("access-control-allow-origin", "*" if everyone else origin)]
        if preflight:
            headers += [*_PREFLIGHT.items(), *(("vary", name) for name in _PREFLIGHT_VARY)]
        elif not everyone:
            headers.append(("vary", "Origin"))
        return tuple(headers)

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
    """The outermost ASGI application: applies the policy, logs the request, hands the rest to `app`."""

    def __init__(self, app: ASGIApp, policy: Policy, keys: Keys, telemetry: Telemetry, room: BodyMemory) -> None:
        self.app = app
        self.policy = policy
        self.keys = keys
        self.telemetry = telemetry
        self.room = room
        self._ids = itertools.count(1)
        self._prefix = f"r{secrets.token_hex(2)}"
        """Tells the requests of one run of the server from those of the next."""

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        method, path = scope["method"], scope["path"]
        fields = {name: value.decode("latin-1") for name, value in scope["headers"] if name in _LOOKED_AT}
        hosts = sum(name == b"host" for name, _ in scope["headers"])
        host, origin, query = fields.get(b"host", ""), fields.get(b"origin"), scope["query_string"].decode("latin-1")
        admission = self.keys.admit(path, fields.get(b"authorization", ""), fields.get(b"x-api-key", ""))
        note(scope, admission)
        given = fields.get(_ID_HEADER, "")
        name = given if _PLAIN_ID.fullmatch(given) else f"{self._prefix}-{next(self._ids)}"
        scope["omlx.request_id"] = name
        share = BodyReservation(self.room, receive)
        share.put(scope)
        protocol = self.policy.routes.protocol(path)
        number, record = self.telemetry.open(name, scope, protocol)
        record.key, record.traceparent = admission.name, fields.get(b"traceparent", "")
        if hosts > 1:
            # A proxy in front may have looked at another of them.
            verdict = Verdict(400, text="400 Bad Request: too many Host headers")
        else:
            verdict = self.policy.judge(method, path, query, host, origin, admission)
        if not verdict.status:
            try:
                record.priority, record.deadline_s, record.num_ctx = read_request_headers(fields)
            except RequestHeaderError as error:
                verdict = Verdict(400, verdict.headers, error_text(protocol, Problem(400, str(error))))
        status, complete = 0, False
        extra = [(field.encode(), value.encode("latin-1")) for field, value in verdict.headers]
        extra.append((_ID_HEADER, name.encode()))

        async def watched(message: Any) -> None:
            nonlocal status, complete
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *extra]
            else:
                complete = not message.get("more_body", False)
            await send(message)

        try:
            if verdict.status:
                await _answer(watched, verdict)
            else:
                await self.app(scope, receive, watched)
        except asyncio.CancelledError:  # the server ends
            if status:
                raise
            ending = error_text(protocol, Problem(503, SHUTTING_DOWN))
            extra.append((b"retry-after", b"1"))
            await _answer(watched, Verdict(503, text=ending))
        finally:
            share.settle(0)
            record.left = not complete or status == 499
            left = ", the client left" if record.left else ""
            self.telemetry.end(number, record, route=scope.get("path_template", "other"), status=status or 499)
            logger.info("%s %s %s %s%s", method, path, status, spell(record.seconds), left)


async def _answer(send: Send, verdict: Verdict) -> None:
    text = verdict.text.encode()
    headers = [(b"content-length", str(len(text)).encode())] if verdict.status != 204 else []
    if text:
        headers.append((b"content-type", JSON_TYPE.encode() if verdict.text.startswith("{") else b"text/plain"))
    await send({"type": "http.response.start", "status": verdict.status, "headers": headers})
    await send({"type": "http.response.body", "body": text, "more_body": False})
