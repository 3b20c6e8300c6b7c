"""A *guard*: middleware that answers a request itself, or passes it on and adds headers to the answer.

Deciding is pure; the base class acts on the decision.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from omlx.server.error_formats import error_text
from omlx.server.errors import JSON_TYPE, Problem
from omlx.server.request_headers import REQUEST_HEADERS
from omlx.server.route_info import RouteTable

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Receive, Send

_FIELDS = {b"host", b"origin", b"authorization", b"x-api-key", *REQUEST_HEADERS}
_SCOPE = "omlx.head"


class Verdict(NamedTuple):
    """What a guard does with a request: answer it itself (`status`), or pass it on; `headers` are added either way."""

    status: int = 0
    headers: tuple[tuple[str, str], ...] = ()
    text: str = ""


PASS = Verdict()


class RequestHead(NamedTuple):
    """What guards read of a request. Header values are decoded as latin-1, the path as UTF-8."""

    method: str
    path: str
    query: str = ""
    fields: Mapping[bytes, str] = {}
    host_count: int = 1
    http_version: str = "1.1"

    @classmethod
    def of(cls, scope: Any) -> RequestHead:
        """The head of a request; read once for all guards."""
        head: RequestHead | None = scope.get(_SCOPE)
        if head is None:
            head = scope[_SCOPE] = cls(
                scope["method"],
                scope["path"],
                scope["query_string"].decode("latin-1"),
                {name: value.decode("latin-1") for name, value in scope["headers"] if name in _FIELDS},
                sum(name == b"host" for name, _ in scope["headers"]),
                scope["http_version"],
            )
        return head

    @property
    def host(self) -> str:
        return self.fields.get(b"host", "")


class Guard(ABC):
    """Acts on the verdict of `judge`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    @abstractmethod
    def judge(self, head: RequestHead) -> Verdict: ...

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        verdict = self.judge(RequestHead.of(scope)) if scope["type"] == "http" else PASS
        if verdict.status:
            await answer(send, verdict)
        elif verdict.headers:
            await self._app(scope, receive, with_headers(send, verdict))
        else:
            await self._app(scope, receive, send)


def with_headers(send: Send, verdict: Verdict) -> Send:
    """`send`, which adds the headers of the verdict."""
    extra = [(name.encode(), value.encode("latin-1")) for name, value in verdict.headers]

    async def send_more(message: Any) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *extra]
        await send(message)

    return send_more


async def answer(send: Send, verdict: Verdict) -> None:
    """Send the verdict as a whole response."""
    text = verdict.text.encode()
    headers = [(b"content-length", str(len(text)).encode())] if verdict.status != 204 else []
    if text:
        headers.append((b"content-type", JSON_TYPE.encode() if verdict.text.startswith("{") else b"text/plain"))
    send = with_headers(send, verdict)
    await send({"type": "http.response.start", "status": verdict.status, "headers": headers})
    await send({"type": "http.response.body", "body": text, "more_body": False})


def refusal(routes: RouteTable, path: str, problem: Problem, *headers: tuple[str, str]) -> Verdict:
    """The problem in the format of the protocol that the path belongs to."""
    return Verdict(problem.status, headers, error_text(routes.protocol(path), problem))
