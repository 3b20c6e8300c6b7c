"""Decodes clients' files in separate processes with limits, so that a hostile file costs only its own request.

A *decoder process* decodes one file after the other, with a limit of memory, and is killed where one takes too much
processor time. Processes are started as they are needed and kept for the next files. A thread of a runner that decodes
only waits, and does not hold the interpreter. Messages between the two are bytes behind their length.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import resource
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Final

import psutil

MOST_IDLE: Final = 4
"""Decoder processes of one kind that are kept for reuse."""
_CLOCK_FACTOR: Final = 3
"""Wall time allowed per CPU time, because other work shares the cores."""
_MOST_ANSWER: Final = 1 << 30
"""Bytes of a message between the two."""
_LOOK_S: Final = 0.1
_KEPT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "VIRTUAL_ENV")
"""The variables that a decoder inherits; no secrets are among them."""
_LENGTH = struct.Struct(">Q")


class TooSlow(Exception):
    """The file takes too much CPU time."""


class DecoderDied(Exception):
    """The process ended while it decoded the file, or sent an invalid message."""


# ---------------------------------------------------------------- the runner's side
class DecoderPool:
    """The processes of one kind: `python -m MODULE`. `memory_bytes` is the limit of each."""

    def __init__(self, module: str, memory_bytes: int) -> None:
        self._command = (sys.executable, "-P", "-m", module)
        self._memory_bytes = memory_bytes
        self._idle: list[DecoderProcess] = []
        self._lock = threading.Lock()
        atexit.register(self._end_all)

    @contextlib.contextmanager
    def process(self) -> Iterator[DecoderProcess]:
        """One process for one file. It is kept afterwards, unless an error leaves the context."""
        with self._lock:
            decoder = self._idle.pop() if self._idle else None
        if decoder is None or not decoder.alive:
            decoder = DecoderProcess(self._command, self._memory_bytes)
        try:
            yield decoder
        except BaseException:
            decoder.end()
            raise
        with self._lock:
            keep = len(self._idle) < MOST_IDLE
            if keep:
                self._idle.append(decoder)
        if not keep:
            decoder.end()

    def _end_all(self) -> None:
        with self._lock:
            while self._idle:
                self._idle.pop().end()


class DecoderProcess:
    """One process, used by one thread at a time."""

    def __init__(self, command: Sequence[str], memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        own = {name: os.environ[name] for name in _KEPT if name in os.environ} | {"OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=own, bufsize=0
        )

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        self._process.wait()

    def ask(self, order: bytes, seconds: float, check: Callable[[], None]) -> bytearray:
        """The answer to an order, within `seconds` of processor time. Raises TooSlow, DecoderDied, and what `check`
        raises, which is called now and then."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        used = self._processor_seconds()
        try:
            send(stdin, order)
            started = time.monotonic()
            while not select.select([stdout], [], [], _LOOK_S)[0]:
                check()
                late = time.monotonic() - started > seconds * _CLOCK_FACTOR
                if late or self._processor_seconds() - used > seconds:
                    raise TooSlow
                if self._resident_bytes() > self._memory_bytes:  # macOS does not enforce RLIMIT_AS
                    raise DecoderDied
            return receive(stdout)
        except (OSError, EOFError) as error:
            raise DecoderDied from error

    def more(self) -> bytearray:
        """The next message of the same answer. Raises DecoderDied."""
        assert self._process.stdout is not None
        try:
            return receive(self._process.stdout)
        except (OSError, EOFError) as error:
            raise DecoderDied from error

    def _resident_bytes(self) -> int:
        try:
            return int(psutil.Process(self._process.pid).memory_info().rss)
        except psutil.Error:
            return 0

    def _processor_seconds(self) -> float:
        try:
            times = psutil.Process(self._process.pid).cpu_times()
        except psutil.Error:
            return 0.0
        return float(times.user + times.system)


def send(stream: IO[bytes], message: bytes | memoryview) -> None:
    """Raises OSError."""
    for part in (memoryview(_LENGTH.pack(len(message))), memoryview(message)):
        done = 0
        while done < len(part):
            done += stream.write(part[done:]) or 0


def receive(stream: IO[bytes]) -> bytearray:
    """Raises EOFError, OSError."""
    (length,) = _LENGTH.unpack(_read(stream, _LENGTH.size))
    if length > _MOST_ANSWER:
        raise EOFError
    return _read(stream, length)


def _read(stream: IO[bytes], length: int) -> bytearray:
    found = bytearray(length)
    view, done = memoryview(found), 0
    while done < length:
        count = stream.readinto(view[done:])  # type: ignore[attr-defined]
        if not count:
            raise EOFError
        done += count
    view.release()
    return found


# ---------------------------------------------------------------- the decoder's side
def serve(answer: Callable[[bytearray], Iterator[bytes | memoryview]], memory_bytes: int) -> None:
    """Answer orders until there are no more: what a decoder program does. `memory_bytes` is its limit."""
    os.nice(5)
    for what, most in ((resource.RLIMIT_AS, memory_bytes), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)):
        with contextlib.suppress(ValueError, OSError):  # macOS has no RLIMIT_AS to enforce
            resource.setrlimit(what, (most, most))
    stdin, stdout = os.fdopen(0, "rb", buffering=0), os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # keep the output of libraries out of the answers
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            for message in answer(receive(stdin)):
                send(stdout, message)
