"""A *helper process* does one piece of work after the other for this process, and can be stopped.

With a client's file, template or text, one call into C may take minutes or gigabytes, with no place to interrupt it.
In a helper it costs only its own request, and it does not hold this process's interpreter. Time is limited by the
process that asks and by the kernel, memory by the kernel on Linux; macOS accepts that limit and does not enforce it, so
memory is also measured while an answer is awaited. A helper that was stopped is replaced by the next request.

Orders and answers are bytes, each preceded by its length.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import resource
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Final, NamedTuple

Part = bytes | bytearray | memoryview

MOST_IDLE: Final = 4
"""Helpers of one kind that are kept for reuse."""
_LOOK_S: Final = 0.1
_MOST_MESSAGE: Final = 1 << 32
_KEPT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "VIRTUAL_ENV", "TZ")
"""The variables that a helper inherits; no secrets are among them."""
_LENGTH = struct.Struct(">Q")


class HelperSlow(Exception):
    """The work takes more time than it may."""


class HelperDied(Exception):
    """The process ended, took too much memory, or sent an invalid message."""


class AskLimits(NamedTuple):
    """Of one piece of work, as the process that asks sees it: seconds, and bytes of resident memory."""

    wall_s: float
    memory_bytes: int
    cpu_s: float = math.inf


class OrderLimits(NamedTuple):
    """Of one piece of work, as the kernel enforces them: seconds, and bytes of address space beyond those at the start.

    0: no limit.
    """

    cpu_s: float = 0.0
    memory_bytes: int = 0


# ---------------------------------------------------------------- the side that asks
class HelperProcess:
    """`python -m MODULE`, started when it is first needed; used by one thread at a time."""

    def __init__(self, module: str) -> None:
        self._command = (sys.executable, "-P", "-m", module)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> subprocess.Popen[bytes]:
        """The running process: the one there is, or a new one."""
        if self._process is None or self._process.poll() is not None:
            self.end()
            own = {name: os.environ[name] for name in _KEPT if name in os.environ} | {"OPENBLAS_NUM_THREADS": "1"}
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # it would only show what clients send
                env=own,
                bufsize=0,
            )
        return self._process

    def ask(self, order: Sequence[Part], limits: AskLimits, check: Callable[[], None] = lambda: None) -> bytearray:
        """The first message of the answer to an order, whose parts are sent one after the other.

        Raises HelperSlow, HelperDied, and what `check` raises, which is called now and then. The process is ended then.
        """
        for may_have_ended in (True, False):
            process = self.start()
            assert process.stdin is not None and process.stdout is not None
            due = time.monotonic() + limits.wall_s
            try:
                send(process.stdin, *order)
                _wait(process, due, limits, check)
                return receive(process.stdout, due)
            except (OSError, EOFError) as error:
                # An idle helper may exit at any moment: try once more with a new one.
                if self.end() != 0 or not may_have_ended:
                    raise HelperDied from error
            except BaseException:
                self.end()  # half an answer may be left in the pipe
                raise
        raise AssertionError

    def more(self) -> bytearray:
        """The next message of the same answer. Raises HelperDied."""
        assert self._process is not None and self._process.stdout is not None
        try:
            return receive(self._process.stdout)
        except (OSError, EOFError) as error:
            raise HelperDied from error

    def kill(self) -> None:
        """End the process, although another thread uses it."""
        if (process := self._process) is not None:
            process.kill()

    def end(self) -> int:
        """End the process; returns its exit status."""
        process, self._process = self._process, None
        if process is None:
            return 0
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LOOK_S)  # the pipe may close before the exit status is known
        process.kill()
        if process.stdout is not None:
            process.stdout.close()
        return process.wait()


class HelperPool:
    """The helpers of one kind. `most`: how many at once, None: as many as there are threads; `most_idle` are kept."""

    def __init__(self, module: str, *, most: int | None = None, most_idle: int = MOST_IDLE) -> None:
        self._module = module
        self._most_idle = most_idle
        self._idle: list[HelperProcess] = []
        self._busy: set[HelperProcess] = set()
        self._lock = threading.Lock()
        self._free = threading.BoundedSemaphore(most) if most is not None else None
        atexit.register(self.close)

    def warm(self) -> None:
        """Start one ahead of the next order."""
        helper = HelperProcess(self._module)
        helper.start()
        self._keep(helper)

    @contextlib.contextmanager
    def process(self) -> Iterator[HelperProcess]:
        """One helper for one piece of work. It is kept afterwards, unless an error leaves the context."""
        with self._free or contextlib.nullcontext():
            with self._lock:
                helper = self._idle.pop() if self._idle else HelperProcess(self._module)
                self._busy.add(helper)
            try:
                yield helper
            except BaseException:
                with self._lock:
                    self._busy.discard(helper)
                helper.end()
                raise
            self._keep(helper)

    def _keep(self, helper: HelperProcess) -> None:
        with self._lock:
            self._busy.discard(helper)
            is_kept = len(self._idle) < self._most_idle
            if is_kept:
                self._idle.append(helper)
        if not is_kept:
            helper.end()

    def close(self) -> None:
        """End all, those that are working too."""
        with self._lock:
            idle, self._idle = self._idle, []
            for helper in self._busy:
                helper.kill()
        for helper in idle:
            helper.kill()
            helper.end()


def _wait(process: subprocess.Popen[bytes], due: float, limits: AskLimits, check: Callable[[], None]) -> None:
    """Wait until the process's stdout is readable or closed."""
    stdout = process.stdout
    assert stdout is not None
    used = _cpu_s(process.pid) if limits.cpu_s < math.inf else 0.0
    while not select.select([stdout], [], [], min(_LOOK_S, max(due - time.monotonic(), 0.0)))[0]:
        check()
        if time.monotonic() > due or (limits.cpu_s < math.inf and _cpu_s(process.pid) - used > limits.cpu_s):
            raise HelperSlow
        if resident_bytes(process.pid) > limits.memory_bytes:
            raise HelperDied


def resident_bytes(pid: int) -> int:
    """Resident memory of a process; 0 if it has ended."""
    import psutil  # rarely needed in a server, and not free to import

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def _cpu_s(pid: int) -> float:
    """Processor time of a process; 0 if it has ended."""
    import psutil  # as above

    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


# ---------------------------------------------------------------- messages
def send(stream: IO[bytes], *parts: Part) -> None:
    """One message, made of `parts`. Raises OSError."""
    for part in (_LENGTH.pack(sum(map(len, parts))), *parts):
        with memoryview(part) as view:
            done = 0
            while done < len(view):
                done += stream.write(view[done : done + (1 << 20)]) or 0


def receive(stream: IO[bytes], due: float = math.inf) -> bytearray:
    """One message. Raises EOFError, OSError; HelperSlow after `due` (of `time.monotonic`)."""
    (length,) = _LENGTH.unpack(_read(stream, _LENGTH.size, due))
    if length > _MOST_MESSAGE:
        raise EOFError
    return _read(stream, length, due)


def _read(stream: IO[bytes], length: int, due: float) -> bytearray:
    data, done = bytearray(length), 0
    with memoryview(data) as view:
        while done < length:
            if due < math.inf and not select.select([stream], [], [], max(due - time.monotonic(), 0.0))[0]:
                raise HelperSlow
            count = stream.readinto(view[done:])  # type: ignore[attr-defined]
            if not count:
                raise EOFError
            done += count
    return data


# ---------------------------------------------------------------- the helper's side
def serve(
    answer: Callable[[bytearray], Iterator[Part | Sequence[Part]]],
    *,
    memory_bytes: int = 0,
    limits: Callable[[int], OrderLimits] = lambda size: OrderLimits(),
    idle_s: float | None = None,
    niceness: int = 0,
) -> None:
    """What a helper program does: answer orders until there are no more, or none has come for `idle_s`.

    `answer` yields the messages of an answer, each whole or in parts. `memory_bytes`: address space, for good; 0: no
    such limit. `limits`: of an order, by its size in bytes.
    """
    os.nice(niceness)
    fixed = [(resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)]
    for what, most in [*fixed, *([(resource.RLIMIT_AS, memory_bytes)] if memory_bytes else [])]:
        with contextlib.suppress(ValueError, OSError):  # macOS has no RLIMIT_AS to enforce
            resource.setrlimit(what, (most, most))
    at_start = _address_space()
    stdin, stdout = os.fdopen(0, "rb", buffering=0), os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # keep the output of libraries out of the answers
    with contextlib.suppress(EOFError, BrokenPipeError):
        while select.select([stdin], [], [], idle_s)[0]:
            (size,) = _LENGTH.unpack(_read(stdin, _LENGTH.size, math.inf))
            _apply(limits(size), at_start)
            for message in answer(_read(stdin, size, math.inf)):
                send(stdout, *([message] if isinstance(message, bytes | bytearray | memoryview) else message))
                del message


def _apply(limits: OrderLimits, at_start: int) -> None:
    """Set the limits of an order: beyond them the kernel refuses memory, or ends this process."""
    if limits.memory_bytes and at_start:
        _limit(resource.RLIMIT_AS, at_start + limits.memory_bytes)
    if limits.cpu_s:
        used = resource.getrusage(resource.RUSAGE_SELF)
        _limit(resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime + limits.cpu_s))


def _limit(what: int, most: int) -> None:
    hard = resource.getrlimit(what)[1]
    resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _address_space() -> int:
    """Bytes; 0 if the system does not report it."""
    if sys.platform != "linux":
        return 0
    return int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
