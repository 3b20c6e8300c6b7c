"""A streamed HTTP answer, line by line, with the moment each line was there.

The socket is read directly: an HTTP library costs more per token than the servers that are measured, and a client that
is slow makes all servers look alike. One request per connection, no proxy, no redirects.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from urllib.parse import urlsplit

_MOST_HEAD = 1 << 16
_MOST_LINE = 1 << 22
_MOST_ERROR = 1 << 16
_READ = 1 << 16


class StreamError(Exception):
    """The server refused, broke off, or sent what is no HTTP. `status` is 0 where no answer had begun."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class _Content:
    """Takes the body of an answer as it arrives and gives its content: without chunk frames where there are some."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        length = headers.get("content-length", "")
        self._left = int(length) if length.isdigit() and not self._chunked else None
        self._waiting = b""
        self._of_chunk = 0
        self.complete = self._left == 0

    def feed(self, data: bytes) -> bytes:
        if not self._chunked:
            if self._left is not None:
                data = data[: self._left]
                self._left -= len(data)
                self.complete = self._left == 0
            return data
        self._waiting += data
        content = b""
        while self._waiting and not self.complete:
            if self._of_chunk > 2:
                part = self._waiting[: self._of_chunk - 2]
                content += part
            elif self._of_chunk:  # the line end behind a chunk
                part = self._waiting[: self._of_chunk]
            else:
                size, end, rest = self._waiting.partition(b"\r\n")
                if not end:
                    break
                try:
                    self._of_chunk = int(size.split(b";")[0], 16) + 2
                except ValueError:
                    raise StreamError("the server sent a chunk without a length") from None
                self.complete, self._waiting = self._of_chunk == 2, rest
                continue
            self._of_chunk -= len(part)
            self._waiting = self._waiting[len(part) :]
        return content

    def end(self) -> None:
        """The connection is at its end; raises StreamError where the body is not."""
        if not self.complete and (self._chunked or self._left):
            raise StreamError("the server ended the answer before it was complete")


async def post_lines(
    url: str, body: bytes, headers: Mapping[str, str], *, timeout_s: float
) -> AsyncIterator[tuple[float, bytes]]:
    """POST `body` and yield (moment of time.perf_counter, line) for every line that is not empty.

    Raises StreamError for anything but a complete 2xx answer within `timeout_s`. Closing the iterator closes the
    connection, which cancels the request.
    """
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(timeout_s):
            secure = ssl.create_default_context() if parts.scheme == "https" else None
            port = parts.port or (443 if secure else 80)
            reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=secure, limit=_MOST_HEAD)
            try:
                writer.write(_request(parts.netloc.rpartition("@")[2], parts.path or "/", body, headers))
                await writer.drain()
                status, fields = await _head(reader)
                content = _Content(fields)
                if status >= 300:
                    raise StreamError(await _error(reader, content), status)
                async for line in _lines(reader, content):
                    yield line
            finally:
                writer.close()
    except TimeoutError:
        raise StreamError(f"no complete answer within {timeout_s:.0f} s") from None
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise StreamError(f"{parts.scheme}://{parts.netloc}: {error}") from error


def _request(host: str, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
    all_headers = {
        "Host": host, "Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close",
        **headers,
    }  # fmt: skip
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in all_headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = text.strip().split("\r\n")
    words = first.split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/") or not words[1].isdigit():
        raise StreamError("what answered there is no HTTP server")
    pairs = (line.partition(":") for line in lines)
    return int(words[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _error(reader: asyncio.StreamReader, content: _Content) -> str:
    text = b""
    with contextlib.suppress(StreamError):
        while not content.complete and len(text) < _MOST_ERROR and (data := await reader.read(_READ)):
            text += content.feed(data)
    return text.decode("utf-8", "replace").strip()


async def _lines(reader: asyncio.StreamReader, content: _Content) -> AsyncIterator[tuple[float, bytes]]:
    pending = b""
    while not content.complete:
        data = await reader.read(_READ)
        moment = time.perf_counter()
        if not data:
            content.end()
            break
        *lines, pending = (pending + content.feed(data)).split(b"\n")
        for line in lines:
            if line.strip():
                yield moment, line
        if len(pending) > _MOST_LINE:
            raise StreamError("the server sent a line without end")
    if pending.strip():
        yield time.perf_counter(), pending
