"""Decodes clients' files in helper processes, so that a hostile file costs only its own request.

A *decoder process* decodes one file after the other, with a limit of memory, and is ended if a file takes too much
processor time. The thread of the runner only waits, and does not hold the interpreter.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Final

from omlx import helper_process
from omlx.helper_process import AskLimits, HelperDied, HelperPool, HelperProcess, HelperSlow

_CLOCK_FACTOR: Final = 3
"""Wall time allowed per CPU time, because other work shares the cores."""

TooSlow = HelperSlow
DecoderDied = HelperDied


class DecoderPool:
    """The processes of one kind: `python -m MODULE`. `memory_bytes` is the limit of each."""

    def __init__(self, module: str, memory_bytes: int) -> None:
        self._helpers = HelperPool(module)
        self._memory_bytes = memory_bytes

    @contextlib.contextmanager
    def process(self) -> Iterator[DecoderProcess]:
        """One process for one file. It is kept afterwards, unless an error leaves the context."""
        with self._helpers.process() as helper:
            yield DecoderProcess(helper, self._memory_bytes)


class DecoderProcess:
    """One process while it decodes a file; used by one thread at a time."""

    def __init__(self, helper: HelperProcess, memory_bytes: int) -> None:
        self._helper = helper
        self._memory_bytes = memory_bytes

    def ask(self, order: bytes, seconds: float, check: Callable[[], None]) -> bytearray:
        """The answer to an order, within `seconds` of processor time. Raises TooSlow, DecoderDied, and what `check`
        raises, which is called now and then."""
        limits = AskLimits(seconds * _CLOCK_FACTOR, self._memory_bytes, cpu_s=seconds)
        return self._helper.ask([order], limits, check)

    def more(self) -> bytearray:
        """The next message of the same answer. Raises DecoderDied."""
        return self._helper.more()


def serve(answer: Callable[[bytearray], Iterator[bytes | memoryview]], memory_bytes: int) -> None:
    """Answer orders until there are no more: what a decoder program does. `memory_bytes` is its limit."""
    helper_process.serve(answer, memory_bytes=memory_bytes, niceness=5)
