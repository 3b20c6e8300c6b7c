"""A *connection*: uvicorn's HTTP/1.1, with two things that it lacks.

httptools collects a header for as long as one is sent; Go's servers, Ollama's among them, stop at a megabyte.

A client may send its next request before the last is answered. uvicorn then reads no further, which blinds it for a
client that leaves, and tells that to the newest request only. Here what comes early is kept, unread, while the
connection goes on listening.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    from typing import Any

    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

MAX_HEAD = 1 << 20
"""Bytes of request line and headers; what arrives in one piece with their end may be beyond."""
_MOST_EARLY = 1 << 18
"""Bytes of next requests that are kept; beyond, the connection is only read on when the answer is complete."""
_EARLY_PIECE = 1 << 16
_TOO_LARGE = "431 Request Header Fields Too Large"


class _Flow(FlowControl):
    """uvicorn's, which reads on whenever a request asks for more: not so while enough is kept."""

    full = False

    def resume_reading(self) -> None:
        if not self.full:
            super().resume_reading()


class Connection(HttpToolsProtocol):
    """Answers 431 and closes where the head of a request grows too large, whether it ever ends or not; one request is
    read and answered at a time."""

    _head: int | None = 0
    """Bytes of the head that is being read; None: a body is."""
    _running: RequestResponseCycle | None = None
    """The request that is being answered; `cycle` is the one that was read last."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._early = bytearray()

    @property
    def _answering(self) -> bool:
        """A request has been read whole, and its answer is not complete."""
        running = self._running
        return running is not None and not running.more_body and not running.response_complete

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.flow = self._flow = _Flow(transport)

    def data_received(self, data: bytes) -> None:
        if self._answering:
            self._early += data
            self._listen()
            return
        self._read(data)
        if self._answering:
            # uvicorn has stopped reading if the same piece held another request.
            self._listen()

    def _listen(self) -> None:
        """Read on, so that the end of the connection is seen, unless too much is kept."""
        self._flow.full = len(self._early) > _MOST_EARLY
        if self._flow.full:
            self._flow.pause_reading()
        elif not self.transport.is_closing():
            self._flow.resume_reading()

    def _read(self, data: bytes) -> None:
        if self._head is not None:
            self._head += len(data)
            if self._head > MAX_HEAD:
                self._refuse()
                return
        super().data_received(data)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        while self._early and not self._answering and not self.transport.is_closing():
            piece = bytes(self._early[:_EARLY_PIECE])
            del self._early[:_EARLY_PIECE]
            self.data_received(piece)
        self._listen()

    def connection_lost(self, exc: Exception | None) -> None:
        self._early.clear()
        self.pipeline.clear()
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        # What came before in the same piece of data belongs to the last request: it cannot be much.
        self._head = self._head or 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head = None
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._head = 0

    def _refuse(self) -> None:
        text = _TOO_LARGE.encode()
        lines = [b"HTTP/1.1 " + text, b"content-type: text/plain; charset=utf-8", b"content-length: %d" % len(text)]
        self.transport.write(b"\r\n".join([*lines, b"connection: close", b"", text]))
        self.transport.close()
        self._head = 0
