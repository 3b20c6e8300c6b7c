"""How fast this device reads and decodes: measured while it works, it decides how much of a prompt fits between steps.

A chunk of n tokens takes `fixed_s + n * token_s`. Nothing is waited for just to be measured: the host blocks once per
step, for the tokens of the step before; the time between two such moments is one decode step and the prompt chunks that
the device worked on between them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from omlx.engine.scheduler import DECODE_SHARE, IDLE_S, prefill_seconds, tokens_within

_WEIGHT = 0.4
"""Of a new measurement against the ones before."""
_GROWTH = 4
_MOST = 4.0
"""A measurement counts as at most so many times the expected: the first run of a shape compiles for seconds."""


class Read(NamedTuple):
    """What was read of prompts in one step."""

    chunks: int = 0
    tokens: int = 0

    def plus(self, tokens: int) -> Read:
        """One more chunk."""
        return Read(self.chunks + 1, self.tokens + tokens)


class Pace:
    """Starts from a calibration: seconds per decode step, per forward whatever its size, and per prompt token."""

    def __init__(
        self,
        *,
        step_s: float,
        fixed_s: float,
        token_s: float,
        largest: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.step_s, self.fixed_s, self.token_s = step_s, fixed_s, token_s
        self._largest = largest
        """Tokens of the largest chunk whose time is known: beyond, attention may grow faster than the tokens."""
        self._clock = clock
        self._last: float | None = None
        self._was_decoding = False
        self._queued = (Read(), Read())
        """Launched in the last step and in the one before it."""
        self._owed_s = 0.0

    def decoded(self) -> None:
        """The host has just read the tokens of the last step."""
        now = self._clock()
        if self._last is not None and self._was_decoding:
            # What the last step read stands behind this step's decode in the device's queue: it is still to come.
            self._learn(now - self._last, self._queued[1], decoding=True)
        self._last, self._was_decoding = now, True
        self._queued = (Read(), self._queued[0])
        self._owed_s = max(self._owed_s - self.step_s, 0.0)

    def read(self, read: Read, owing: Read, *, decoding: bool) -> None:
        """Prompt chunks were launched in this step, and those of the last step are done. `owing`: those of them that
        the decode steps are to be given time for."""
        if decoding:
            self._queued = (read, self._queued[1])
            self._owed_s += self.cost(owing) * DECODE_SHARE / (1 - DECODE_SHARE)
            return
        now = self._clock()
        if self._last is not None and not self._was_decoding:
            self._learn(now - self._last, self._queued[0], decoding=False)
        self._last, self._was_decoding, self._owed_s = now, False, 0.0
        self._queued = (read, Read())

    @property
    def owes(self) -> bool:
        """Whether the decode steps have yet to be given their share of time."""
        return self._owed_s > 0

    def idle(self) -> None:
        """Nothing runs: the time until the next step says nothing."""
        self._last, self._owed_s = None, 0.0

    def seconds(self, max_gap_s: float, *, decoding: bool, eager: bool) -> float:
        """How long prompts may be read in this step; 0: not at all."""
        if not decoding:
            return IDLE_S
        return prefill_seconds(
            eager=eager, owed_s=self._owed_s, step_s=self.step_s, fixed_s=self.fixed_s, max_gap_s=max_gap_s
        )

    def tokens(self, seconds: float) -> int:
        """Tokens of a chunk that takes about so long, and is not much larger than any that was measured."""
        return min(tokens_within(seconds, fixed_s=self.fixed_s, token_s=self.token_s), _GROWTH * self._largest)

    def cost(self, read: Read) -> float:
        """Expected seconds."""
        return read.chunks * self.fixed_s + read.tokens * self.token_s

    def _learn(self, seconds: float, read: Read, *, decoding: bool) -> None:
        if read.chunks == 0:
            if decoding:
                self.step_s *= _correction(seconds, self.step_s)
            return
        self._largest = max(self._largest, read.tokens // read.chunks)
        correction = _correction(max(seconds - (self.step_s if decoding else 0.0), 0.0), self.cost(read))
        # The larger part of the cost is what was mismeasured.
        if read.tokens * self.token_s > read.chunks * self.fixed_s:
            self.token_s *= correction
        else:
            self.fixed_s *= correction


def _correction(measured: float, expected: float) -> float:
    ratio = min(max(measured / max(expected, 1e-9), 1 / _MOST), _MOST)
    return float(ratio**_WEIGHT)
