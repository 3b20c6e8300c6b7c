"""A *connection*: uvicorn's HTTP/1.1, with what it lacks.

- httptools collects a header for as long as one is sent; Go's servers, Ollama's among them, stop at a megabyte.
- A client may send its next request before the last is answered. uvicorn then reads no further, which blinds it for a
  client that leaves, and tells that to the newest request only. Here what comes early is kept, unread, while the
  connection goes on listening.
- A request that is never finished ends after a time: see `connection_limits`.
- A client that has closed its sending side may still want its answer: see `_ask_whether_it_listens`.
- An offer to upgrade is ignored, and HTTP/1.0 gets no chunks: see `http_versions`.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Literal

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from omlx.server.connection_limits import BODY_PIECE, Connections
from omlx.server.http_versions import head_without_upgrade, keep_probing, send_unframed

if TYPE_CHECKING:
    from typing import Any

    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

MAX_HEAD = 1 << 20
"""Bytes of request line and headers; what arrives in one piece with their end may be beyond."""
_MAX_TRAILERS = 1 << 14
"""Bytes of headers behind a body that comes in chunks. Nothing here reads them."""
_MOST_EARLY = 1 << 18
"""Bytes of next requests that are kept; beyond, the connection is only read on when the answer is complete."""
_EARLY_PIECE = 1 << 16
_MANY = 1 << 30
_INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
_LEADING_ZERO = b"0"
"""What may precede the length of the next chunk, which is written without one."""
_LISTENS_AFTER_S = (0.05, 0.2, 1.0, 5.0)
"""When to look whether a client that sends no more still listens; the last again and again."""
_REFUSED_S = 5.0
Stage = Literal["silent", "head", "body", "between"]


class _Flow(FlowControl):
    """uvicorn's, which reads on whenever a request asks for more: not so while enough is kept."""

    full = False

    def resume_reading(self) -> None:
        if not self.full:
            super().resume_reading()


class Connection(HttpToolsProtocol):
    """One request is read and answered at a time. `limits` are those of the whole server."""

    _head: int | None = 0
    """Bytes of the head that is being read; None: a body is."""
    _running: RequestResponseCycle | None = None
    """The request that is being answered; `cycle` is the one that was read last."""
    _stage: Stage = "silent"
    """What is being read."""
    _timer: asyncio.TimerHandle | None = None
    _timed: Stage | None = None
    """What the timer is for."""
    _body = 0
    """Bytes that have come since the timer was set."""
    _unread: asyncio.TimerHandle | None = None
    _unsent = 0
    """Bytes that waited to be sent when the connection was looked at last."""
    _trailers = 0
    """Bytes of headers that came behind the body."""
    _ended = False
    """The client sends no more."""
    _refused = False

    def __init__(self, *args: Any, limits: Connections | None = None, **more: Any) -> None:
        super().__init__(*args, **more)
        self._limits = limits or Connections(_MANY)
        self._early = bytearray()

    @property
    def _answering(self) -> bool:
        """A request has been read whole, and its answer is not complete."""
        running = self._running
        return running is not None and not running.more_body and not running.response_complete

    # ------------------------------------------------------------ the beginning and the end
    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.flow = self._flow = _Flow(transport)
        self._refused = not self._limits.opened(self)
        if not self._refused:
            self._watch()
        elif self._limits.refused(self):
            self._timer = self.loop.call_later(_REFUSED_S, self.drop)
        else:
            self.drop()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        running = self._running
        if not self._answering or running is None:
            return None
        self._ended = True
        # The system asks too, and is told when the client has forgotten the connection.
        keep_probing(self.transport.get_extra_info("socket"))
        if running.response_started:
            if running.chunked_encoding:
                self.transport.write(_LEADING_ZERO)
        elif running.scope["http_version"] != "1.0":  # which has no interim answers
            self.transport.write(_INTERIM)
        self._ask_whether_it_listens(0)
        return True

    def _ask_whether_it_listens(self, turn: int) -> None:
        """Closing one direction and leaving look the same here. What is sent to a client that has left is answered with
        a reset, which shows as the socket's error. So something is sent that changes no answer: an interim answer
        before the first byte, and within a stream a zero in front of the next chunk's length (RFC 9112, 7.1)."""
        if self.transport.is_closing():
            return
        if self.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
            return
        after = _LISTENS_AFTER_S[min(turn, len(_LISTENS_AFTER_S) - 1)]
        self.loop.call_later(after, self._ask_whether_it_listens, turn + 1)

    def connection_lost(self, exc: Exception | None) -> None:
        self._limits.closed(self)
        for timer in (self._timer, self._unread):
            if timer is not None:
                timer.cancel()
        self._early.clear()
        self.pipeline.clear()
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def drop(self) -> None:
        """End the connection at once, whatever is still to be sent."""
        self.transport.abort()

    # ------------------------------------------------------------ reading
    def data_received(self, data: bytes) -> None:
        if self._refused:
            self._answer_and_close("503 Service Unavailable", "server busy, please try again.  too many connections")
            return
        if self._answering:
            self._early += data
            self._listen()
            return
        self._body += len(data)
        self._read(data)
        if self._answering:
            # uvicorn has stopped reading if the same piece held another request.
            self._listen()
        self._watch()

    def _listen(self) -> None:
        """Read on, so that the end of the connection is seen, unless too much is kept."""
        self._flow.full = len(self._early) > _MOST_EARLY
        if self._flow.full:
            self._flow.pause_reading()
        elif not self._ended and not self.transport.is_closing():
            self._flow.resume_reading()

    def _read(self, data: bytes) -> None:
        if self._head is not None:
            self._head += len(data)
            if self._head > MAX_HEAD:
                self._answer_and_close("431 Request Header Fields Too Large")
                self._head = 0
                return
        self._unset_keepalive_if_required()
        self._feed(data)

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._upgrading:
                self._read_without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self.logger.debug("a request that is not HTTP")
            self.send_400_response("Invalid HTTP request received.")

    @property
    def _upgrading(self) -> bool:
        """The head that was just read offers to change the protocol, and a request comes with it."""
        return bool(self.parser.should_upgrade()) and self.parser.get_method() != b"CONNECT"

    def _read_without_upgrade(self, rest: bytes) -> None:
        version, method = self.parser.get_http_version(), self.parser.get_method()
        head = head_without_upgrade(method, self.url, version, self.headers)
        self.parser = httptools.HttpRequestParser(self)
        # As uvicorn does: what follows the last request is no error.
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._feed(head + rest)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        if cycle.scope["http_version"] == "1.0":
            send_unframed(cycle)
        super()._start_asgi_task(cycle, _ending_quietly(cycle, app))

    def on_response_complete(self) -> None:
        super().on_response_complete()
        while self._early and not self._answering and not self.transport.is_closing():
            piece = bytes(self._early[:_EARLY_PIECE])
            del self._early[:_EARLY_PIECE]
            self.data_received(piece)
        self._listen()
        self._watch()
        if self._ended and not self._answering:
            self.transport.close()

    def on_message_begin(self) -> None:
        # What came before in the same piece of data belongs to the last request: it cannot be much.
        self._head = self._head or 0
        self._stage = "head"
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head is not None:
            super().on_header(name, value)
            return
        # uvicorn would put them among the headers that were looked at before the body, without end.
        self._trailers += len(name) + len(value) + 4
        if self._trailers > _MAX_TRAILERS:
            raise ValueError("too many trailers")  # to the parser, which ends the request

    def on_headers_complete(self) -> None:
        if self._upgrading:
            return
        self._trailers = 0
        self._head = None
        self._stage = "body"
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        if self._upgrading:
            return
        super().on_message_complete()
        self._head = 0
        self._stage = "between"

    def _answer_and_close(self, status: str, sentence: str = "") -> None:
        text = (sentence or status).encode()
        lines = [
            b"HTTP/1.1 " + status.encode(),
            b"content-type: text/plain; charset=utf-8",
            b"content-length: %d" % len(text),
            *([b"retry-after: 1"] if status.startswith("503") else []),
            b"connection: close",
        ]
        if not self.transport.is_closing():
            self.transport.write(b"\r\n".join([*lines, b"", text]))
            self.transport.close()

    # ------------------------------------------------------------ time
    def _watch(self) -> None:
        """Set the timer for what is being read now."""
        answering, closing = self._answering, self.transport.is_closing()
        # Whose body waits for its turn to be read is not late.
        self._limits.heard(self, unfinished=not answering and not self._flow.read_paused)
        stage = None if answering or closing or self._stage == "between" else self._stage
        if not answering and not closing and self._stage == "between" and self.timeout_keep_alive_task is None:
            # The body came to its end after the answer: uvicorn set its timer before.
            self._wait_for_next()
        if stage == self._timed:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timed = stage
        if stage is not None:
            self._set_timer(stage)

    def _set_timer(self, stage: Stage) -> None:
        times, self._body = self._limits.times, 0
        seconds = {"silent": times.first_byte, "head": times.head, "body": times.body}[stage]
        self._timer = self.loop.call_later(seconds, self._too_slow, stage)

    def _too_slow(self, stage: Stage) -> None:
        running = self._running
        if stage == "body" and running is not None and running.response_complete:
            self.drop()  # at any speed: the body was refused, and nothing of it is used
            return
        if stage == "body" and (self._body >= BODY_PIECE or self._flow.read_paused):
            self._set_timer(stage)
            return
        begun = running is not None and running.response_started and not running.response_complete
        if stage == "silent" or begun:
            self.drop()
        else:
            self._answer_and_close("408 Request Timeout", "the request did not come to its end in time")

    def _wait_for_next(self) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        # Closing waits until all is sent, to a client that may never read it.
        unsent, before = self.transport.get_write_buffer_size(), self._unsent
        self._unsent = unsent
        if unsent == 0:
            super().timeout_keep_alive_handler()
        elif unsent == before:
            self.drop()
        else:
            self._wait_for_next()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait_for_reader()

    def resume_writing(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        super().resume_writing()

    def _wait_for_reader(self) -> None:
        """Drop a client that takes nothing of what waits to be sent."""
        unsent = self.transport.get_write_buffer_size()

        def look() -> None:
            if self.transport.get_write_buffer_size() == unsent:
                self.drop()
            else:
                self._wait_for_reader()

        self._unread = self.loop.call_later(self._limits.times.answer, look)


def _ending_quietly(cycle: RequestResponseCycle, app: Any) -> Any:
    """`app`, whose answers break off without a traceback in the log when the server ends and cancels them."""

    async def run(scope: Any, receive: Any, send: Any) -> None:
        try:
            await app(scope, receive, send)
        except asyncio.CancelledError:
            cycle.disconnected = True
            cycle.transport.close()

    return run
