"""Decodes large JSON in a *reader*, a helper process that can be stopped.

A JSON decoder holds the GIL until it returns: numbers of thousands of digits, long runs of escapes or damaged UTF-8
take seconds, and every open stream waits. A reader has limits of CPU time and memory and returns the values as
MessagePack, which decodes about as fast as it is copied.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from omlx.helper_process import AskLimits, HelperDied, HelperPool, HelperSlow, OrderLimits, serve
from omlx.protocols.http_error import HTTPError
from omlx.protocols.ollama import gojson
from omlx.server.body_counts import Tally, tally

LARGE = 8_000_000
"""Bytes. A smaller body is decoded in a thread: no call of the decoder takes a second, whatever its content."""
PROCESSES = 2
"""Readers, so that one slow body does not block all others."""
_ANSWERED = struct.Struct(">cQ?")
"""Ahead of an answer: the outcome, the number of values, and whether these are many."""
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
        self._pool = HelperPool("omlx.server.large_json", most=PROCESSES)

    def read(self, body: bytes) -> ReadValue:
        """As `gojson.first_value`, in a reader. Blocks.

        Raises Malformed; HTTPError 413 if `body` holds too many values or takes too long.
        """
        memory = _AT_START + _MEMORY_BYTES + len(body) * _MEMORY_PER_BYTE
        try:
            with self._pool.process() as reader:
                answer = reader.ask([body], AskLimits(_CLOCK_FACTOR * _cpu_s(len(body)), memory))
        except (HelperSlow, HelperDied):
            raise HTTPError(413, _TOO_MUCH) from None
        outcome, values, many = _ANSWERED.unpack_from(answer)
        with memoryview(answer) as view:
            if outcome == _VALUE:
                return ReadValue(msgspec.msgpack.decode(view[_ANSWERED.size :]), values, many)
            text = str(view[_ANSWERED.size :], "utf-8")
        if outcome == _EXCESS:
            raise HTTPError(413, text)
        raise gojson.EmptyBody(text) if outcome == _EMPTY else gojson.Malformed(text)


def check_counts(counts: Tally) -> None:
    """Raises HTTPError 413 if a count exceeds its limit."""
    if counts.excess:
        raise HTTPError(413, f"the request body holds more than {counts.excess}")


def _cpu_s(size: int) -> float:
    return _CPU_S + size * _CPU_S_PER_BYTE


# ---------------------------------------------------------------- the process
def _limits(size: int) -> OrderLimits:
    return OrderLimits(_cpu_s(size), _MEMORY_BYTES + size * _MEMORY_PER_BYTE)


def _messages(order: bytearray) -> Iterator[tuple[bytes, bytes]]:
    body = bytes(order)
    order.clear()  # it may be large
    outcome, values, many, data = _answer(body)
    yield _ANSWERED.pack(outcome, values, many), data


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


if __name__ == "__main__":
    serve(_messages, limits=_limits, idle_s=_IDLE_S)
