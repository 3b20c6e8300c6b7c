"""Answers that take time: NDJSON and SSE streams, and single objects whose work stops the moment the client leaves.

A *live answer* is an ASGI response that owns its work. While the work waits (for a model to load, in a queue, for the
next token) it also listens for the client's disconnect; then the work is cancelled, which releases the runner. An error
before the first line keeps its real HTTP status; after it, the stream ends with an error line: the status is gone.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from omlx.pool.errors import SHUTTING_DOWN
from omlx.server.errors import JSON_TYPE, ClientGone, Problem, native_error, problem, request_id

if TYPE_CHECKING:
    from litestar.types import Receive, Scope, Send

Lines = AsyncIterator[bytes]
"""An async generator of complete chunks."""


_ESCAPED = tuple((character.encode(), f"\\u{ord(character):04x}".encode()) for character in "<>&\u2028\u2029")


def encode(value: Any) -> bytes:
    """JSON as Go writes it: five characters are escaped inside strings, the only place they occur."""
    text = msgspec.json.encode(value)
    for character, escape in _ESCAPED:
        if character in text:
            text = text.replace(character, escape)
    return text


def line(value: Any) -> bytes:
    """One NDJSON line."""
    return encode(value) + b"\n"


class Framing(NamedTuple):
    """How a protocol streams: its content type, further headers, and its words for an error in mid-stream."""

    content_type: bytes
    error: Callable[[Problem], bytes]
    headers: tuple[tuple[bytes, bytes], ...] = ()


NDJSON = Framing(b"application/x-ndjson", lambda found: msgspec.json.encode(native_error(found)) + b"\n")


EVENT_STREAM = b"text/event-stream"


def event(data: Any, name: str = "") -> bytes:
    """One server-sent event."""
    return (b"event: %s\n" % name.encode() if name else b"") + b"data: " + encode(data) + b"\n\n"


class Answer(ABC):
    """What a route returns: an ASGI response that writes itself."""

    @abstractmethod
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class Complete(Answer):
    """An answer that is already there; without a content type where `content_type` is None."""

    def __init__(
        self,
        content: bytes = b"",
        *,
        status: int = 200,
        content_type: str | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self.content = content
        self.status = status
        kind = (("content-type", content_type),) if content_type else ()
        fields = (*kind, ("content-length", str(len(content))), *headers)
        self.headers = [(name.encode(), value.encode("latin-1")) for name, value in fields]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        await _body(send, self.content, more=False)


def as_json(value: Any, *, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> Complete:
    return Complete(encode(value), status=status, content_type=JSON_TYPE, headers=headers)


class LiveStream(Answer):
    """Streams `lines` until they end or the client leaves."""

    def __init__(self, lines: Lines, framing: Framing = NDJSON) -> None:
        self.lines = lines
        self.framing = framing
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self._send(request_id(scope), send))
        except ClientGone:
            if not self._started:
                raise  # for the log: nobody reads the answer
        except asyncio.CancelledError:  # the server ends
            if not self._started:
                raise
            await _body(send, self.framing.error(Problem(503, SHUTTING_DOWN)))
            await _body(send, b"", more=False)

    async def _send(self, name: str, send: Send) -> None:
        headers = [(b"content-type", self.framing.content_type), *self.framing.headers]
        # The generator is closed here and now on any way out: what it holds (a lease) is released with it.
        async with aclosing(self.lines) as lines:  # type: ignore[type-var]
            first = await anext(lines, b"")
            self._started = True
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await _body(send, first)
            try:
                async for chunk in lines:
                    await _body(send, chunk)
            except Exception as error:  # the status is already sent: the error becomes the last line
                await _body(send, self.framing.error(problem(error, name)))
        await _body(send, b"", more=False)


class LiveObject(Answer):
    """Answers with the one object that `work` returns, unless the client leaves first."""

    def __init__(self, work: Coroutine[Any, Any, bytes], content_type: str = JSON_TYPE) -> None:
        self.work = work
        self.content_type = content_type.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        text = await while_connected(receive, self.work)
        headers = [(b"content-type", self.content_type), (b"content-length", str(len(text)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await _body(send, text, more=False)


async def _body(send: Send, chunk: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": chunk, "more_body": more})


async def while_connected(receive: Receive, work: Coroutine[Any, Any, Any]) -> Any:
    """The result of `work`; ClientGone, with `work` cancelled and cleaned up, when the client leaves before it ends.

    The request's body must have been read: from then on `receive` only ever reports the disconnect.
    """
    job = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait((job, watch), return_when=asyncio.FIRST_COMPLETED)
        if not job.done():
            raise ClientGone
        return job.result()
    finally:
        for task in (job, watch):
            task.cancel()
        await asyncio.gather(job, watch, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
