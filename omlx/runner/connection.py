"""The *connection* to a runner: frames to it, and a mailbox for every open request that its answers go to.

All methods belong to one asyncio loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Iterator
from typing import Any, NamedTuple, TypeVar

from omlx.messages.frames import (
    HEADER_SIZE,
    Cancel,
    Embedded,
    FromRunner,
    Ranked,
    Reply,
    ToRunner,
    body_length,
    decode_from_runner,
    encode,
)
from omlx.messages.request import Failure, FailureKind
from omlx.runner.mailbox import Item, Mailbox
from omlx.runner.process import Started

CRASHED = (
    "model runner has unexpectedly stopped, this may be due to resource limitations or an internal error, "
    "check ollama server logs for details"
)
"""Ollama's words; clients look for them."""
_LARGE_FRAME = 64 * 1024
Answer = TypeVar("Answer", Embedded, Ranked, Reply)
T = TypeVar("T")


class RequestFailed(Exception):
    """A request ended badly; `message` is a sentence for the user."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


class RunnerConnection:
    """The server's end of the socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._mailboxes: dict[int, Mailbox] = {}
        self._next_id = 0
        self._draining = asyncio.Lock()

    @property
    def open_requests(self) -> int:
        return len(self._mailboxes)

    def close(self) -> None:
        self._writer.close()

    # ------------------------------------------------------------ to the runner
    def post(self, frame: ToRunner) -> None:
        if not self._writer.is_closing():
            self._writer.write(encode(frame))

    async def submit(self, frame: ToRunner) -> None:
        data = encode(frame)
        self._writer.write(data)
        if len(data) > _LARGE_FRAME:
            async with self._draining:
                with contextlib.suppress(ConnectionError):  # the reader will tell all open requests
                    await self._writer.drain()

    @contextlib.contextmanager
    def request(self) -> Iterator[tuple[int, Mailbox]]:
        """A number and a mailbox; a request left before its last word is cancelled, and what comes later is dropped."""
        self._next_id += 1
        number, mailbox = self._next_id, Mailbox()
        self._mailboxes[number] = mailbox
        try:
            yield number, mailbox
        finally:
            self._mailboxes.pop(number, None)
            if not mailbox.closed:
                self.post(Cancel(number))

    # ------------------------------------------------------------ from the runner
    async def receive(self) -> FromRunner:
        """The next frame. Raises IncompleteReadError or ConnectionError at the end, ValueError for what is no frame."""
        header = await self._reader.readexactly(HEADER_SIZE)
        return decode_from_runner(await self._reader.readexactly(body_length(header)))

    def deliver(self, number: int, item: Item) -> None:
        mailbox = self._mailboxes.get(number)
        if mailbox is None:
            return
        mailbox.put(item)
        if mailbox.overfull:
            self.post(Cancel(number))
            mailbox.put(Failure(number, "internal", "the answer was given up: the client reads too slowly"))

    def fail_all(self, message: str) -> None:
        """Every open request fails with kind "crashed"."""
        for number, mailbox in self._mailboxes.items():
            mailbox.put(Failure(number, "crashed", message))


async def answer(mailbox: Mailbox, kind: type[Answer], deadline: float | None = None) -> Answer:
    """The one answer to a question; RequestFailed where it is a failure."""
    while True:
        item = await in_time(mailbox.get(), deadline)
        if isinstance(item, kind):
            return item
        if isinstance(item, Failure):
            raise RequestFailed(item.kind, item.message)


async def in_time(work: Coroutine[Any, Any, T], deadline: float | None) -> T:
    """The result of `work`; RequestFailed "timeout" when the deadline comes first (of `time.monotonic`; None: none)."""
    if deadline is None:
        return await work
    try:
        async with asyncio.timeout(max(deadline - time.monotonic(), 0.0)):
            return await work
    except TimeoutError:
        raise RequestFailed("timeout", "the request took longer than its deadline") from None


class RunnerStreams(NamedTuple):
    """A process's sockets as streams of the event loop: frames in both directions, and the output."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    output: asyncio.StreamReader
    output_writer: asyncio.StreamWriter


async def connect(started: Started) -> RunnerStreams:
    """Take over the sockets of a new process. Where that fails, the process is ended and the sockets are closed."""
    writers = list[asyncio.StreamWriter]()
    try:
        reader, writer = await asyncio.open_unix_connection(sock=started.frames, limit=1 << 20)
        writers.append(writer)
        output, output_writer = await asyncio.open_unix_connection(sock=started.output)
    except BaseException:
        started.process.kill()
        started.process.wait()
        for one in writers:
            one.close()
        started.output.close()
        if not writers:
            started.frames.close()
        raise
    return RunnerStreams(reader, writer, output, output_writer)
