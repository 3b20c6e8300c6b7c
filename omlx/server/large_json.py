"""Decodes large JSON in a *reader*, a separate process that can be killed.

A JSON decoder holds the GIL until it returns: numbers of thousands of digits, long runs of escapes or damaged UTF-8
take seconds, and every open stream waits. A reader has limits of CPU time and memory (see `watched` for macOS) and
returns the values as MessagePack, which decodes about as fast as it is copied. Readers are started when needed, reused,
and exit when idle.

Frames: a length and a body to the reader; an outcome, two counts, a length, and a value or an error text back.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import resource
import select
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec

from omlx.protocols.http_error import HTTPError
from omlx.protocols.ollama import gojson
from omlx.runner.watched import wait_for_answer
from omlx.server.body_counts import Tally, tally

LARGE = 8_000_000
"""Bytes. A smaller body is decoded in a thread: no call of the decoder takes a second, whatever its content."""
PROCESSES = 2
"""Readers, so that one slow body does not block all others."""
_COMMAND = (sys.executable, "-P", "-m", "omlx.server.large_json")
_KEPT = ("PATH", "PYTHONPATH", "VIRTUAL_ENV")
"""The variables that a reader inherits; no secrets are among them."""
_ASKED, _ANSWERED = struct.Struct(">Q"), struct.Struct(">cQ?Q")
_VALUE, _EMPTY, _MALFORMED, _EXCESS = b"v", b"e", b"m", b"x"
_CPU_S, _CPU_S_PER_BYTE = 2.0, 30e-9
"""Three times the CPU time of ordinary JSON on a slow core."""
_MEMORY_BYTES, _MEMORY_PER_BYTE = 1 << 30, 10
"""In addition to the memory at start; a character of text may take four bytes."""
_AT_START = 1 << 28
"""An upper bound of the memory at start."""
_CLOCK_FACTOR = 10
"""Wall time allowed per CPU time, because other work shares the cores."""
_IDLE_S = 60.0
_TOO_MUCH = "the request body takes too much time or memory to decode: send a smaller one"


class ReadValue(NamedTuple):
    """The first JSON value of a body; its number of values, and whether these are many (see `Tally`)."""

    value: Any
    values: int
    many: bool


class Readers:
    """The readers of one server."""

    def __init__(self) -> None:
        self._free: queue.LifoQueue[_Reader] = queue.LifoQueue()
        for _ in range(PROCESSES):
            self._free.put(_Reader())

    def read(self, body: bytes) -> ReadValue:
        """As `gojson.first_value`, in a reader. Blocks.

        Raises Malformed; HTTPError 413 if `body` holds too many values or takes too long.
        """
        reader = self._free.get()
        try:
            outcome, values, many, data = reader.ask(body)
        finally:
            self._free.put(reader)
        if outcome == _VALUE:
            return ReadValue(msgspec.msgpack.decode(data), values, many)
        text = data.decode()
        if outcome == _EXCESS:
            raise HTTPError(413, text)
        raise gojson.EmptyBody(text) if outcome == _EMPTY else gojson.Malformed(text)


def check_counts(counts: Tally) -> None:
    """Raises HTTPError 413 if a count exceeds its limit."""
    if counts.excess:
        raise HTTPError(413, f"the request body holds more than {counts.excess}")


class _Reader:
    """The handle of one process; used by one thread at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, body: bytes) -> tuple[bytes, int, bool, bytearray]:
        """Send a body and wait for the outcome. Raises HTTPError."""
        for may_have_ended in (True, False):
            process = self._start()
            assert process.stdin is not None and process.stdout is not None
            due = time.monotonic() + _CLOCK_FACTOR * _cpu_s(len(body))
            try:
                for part in (_ASKED.pack(len(body)), body):
                    _write(process.stdin, part)
                wait_for_answer(process, due, _AT_START + _MEMORY_BYTES + len(body) * _MEMORY_PER_BYTE)
                outcome, values, many, size = _ANSWERED.unpack(_read(process.stdout, _ANSWERED.size, due))
                return outcome, values, many, _read(process.stdout, size, due)
            except (OSError, EOFError, TimeoutError):
                # An idle reader may exit at any moment: try once more with a new one.
                if self._end() != 0 or not may_have_ended:
                    break
            except BaseException:
                self._end()  # half an answer may be left in the pipe
                raise
        raise HTTPError(413, _TOO_MUCH)

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._end()
            own = {name: os.environ[name] for name in _KEPT if name in os.environ}
            self._process = subprocess.Popen(
                _COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=own, bufsize=0
            )
        return self._process

    def _end(self) -> int:
        """End the process; returns its exit status."""
        process, self._process = self._process, None
        if process is None:
            return 0
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.1)  # the pipe may close before the status is there
        process.kill()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        return process.wait()


def _cpu_s(size: int) -> float:
    return _CPU_S + size * _CPU_S_PER_BYTE


def _write(pipe: IO[bytes], data: bytes) -> None:
    with memoryview(data) as view:
        done = 0
        while done < len(view):
            done += pipe.write(view[done : done + (1 << 20)])


def _read(pipe: IO[bytes], size: int, due: float = math.inf) -> bytearray:
    """Read exactly `size` bytes. Raises EOFError, TimeoutError."""
    data, done = bytearray(size), 0
    with memoryview(data) as view:
        while done < size:
            if due < math.inf and not select.select([pipe], [], [], max(due - time.monotonic(), 0.0))[0]:
                raise TimeoutError
            count = pipe.readinto(view[done:])  # type: ignore[attr-defined]
            if not count:
                raise EOFError
            done += count
    return data


# ---------------------------------------------------------------- the process
def main() -> None:
    """Serve bodies from standard input until it closes or the idle timeout."""
    requests, answers = os.fdopen(0, "rb", buffering=0), os.fdopen(1, "wb", buffering=0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    at_start = _address_space()
    with contextlib.suppress(EOFError, BrokenPipeError):
        while select.select([requests], [], [], _IDLE_S)[0]:
            (size,) = _ASKED.unpack(_read(requests, _ASKED.size))
            _limit(resource.RLIMIT_AS, at_start + _MEMORY_BYTES + size * _MEMORY_PER_BYTE if at_start else 0)
            used = resource.getrusage(resource.RUSAGE_SELF)
            _limit(resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime + _cpu_s(size)))
            outcome, values, many, data = _answer(bytes(_read(requests, size)))
            _write(answers, _ANSWERED.pack(outcome, values, many, len(data)))
            _write(answers, data)
            del data


def _answer(body: bytes) -> tuple[bytes, int, bool, bytes]:
    try:
        counts = tally(body)
        check_counts(counts)
        return _VALUE, counts.values, counts.many, msgspec.msgpack.encode(gojson.first_value(body))
    except HTTPError as error:
        return _EXCESS, 0, False, error.message.encode()
    except gojson.Malformed as error:
        outcome = _EMPTY if isinstance(error, gojson.EmptyBody) else _MALFORMED
        return outcome, 0, False, str(error).encode("utf-8", "replace")
    except OverflowError:
        return _MALFORMED, 0, False, b"json: cannot unmarshal number: it is out of range"
    except RecursionError:
        return _MALFORMED, 0, False, b"exceeded max depth"
    except MemoryError:
        return _EXCESS, 0, False, _TOO_MUCH.encode()


def _address_space() -> int:
    """Bytes; 0 if the system does not report it."""
    if sys.platform != "linux":
        return 0
    return int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()


def _limit(what: int, most: int) -> None:
    """Set a soft limit of `most`; 0: none."""
    hard = resource.getrlimit(what)[1]
    if most:
        resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


if __name__ == "__main__":
    main()
