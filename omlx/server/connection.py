"""A *connection*: uvicorn's HTTP/1.1, with a bound on what may stand before a body.

httptools collects a header for as long as one is sent; Go's servers, Ollama's among them, stop at a megabyte.
"""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD = 1 << 20
"""Bytes of request line and headers; what arrives in one piece with their end may be beyond."""
_TOO_LARGE = "431 Request Header Fields Too Large"


class Connection(HttpToolsProtocol):
    """Answers 431 and closes where the head of a request grows too large, whether it ever ends or not."""

    _head: int | None = 0
    """Bytes of the head that is being read; None: a body is."""

    def data_received(self, data: bytes) -> None:
        if self._head is not None:
            self._head += len(data)
            if self._head > MAX_HEAD:
                self._refuse()
                return
        super().data_received(data)

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
