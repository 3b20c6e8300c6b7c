"""How fast this device reads and decodes: measured while it works, it decides how much of a prompt fits between steps.

A chunk of n tokens takes `fixed_s + n * token_s`. Nothing is waited for just to be measured: the host blocks about
once per step, for the tokens of the step before. Where in the queue it blocks depends on the backend, so a chunk's time
shows in one of the two intervals that follow its launch. Therefore a step counts as undisturbed only beyond these, and
chunks are measured over a *window* that ends with them (or after several chunks in a row).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from omlx.engine.scheduler import DECODE_SHARE, IDLE_S, prefill_seconds, tokens_within

_WEIGHT = 0.5
"""Of a new measurement against the ones before."""
_MOST = 4.0
"""A measurement counts as at most so many times the expected: the first run of a shape compiles for seconds."""
_GROWTH = 4
"""A chunk is at most so many times as long as the longest that was measured."""
_SPILL = 2
"""Steps until a chunk has shown in the time between two reads."""
_WINDOW = 6
"""Steps with chunks after which a window ends anyway."""


class Read(NamedTuple):
    """What was read of prompts: all of it, and the part for which decode steps are to be given time."""

    chunks: int = 0
    tokens: int = 0
    owing_chunks: int = 0
    owing_tokens: int = 0

    def plus(self, tokens: int, *, owing: bool) -> Read:
        """One more chunk."""
        own = Read(1, tokens, int(owing), tokens if owing else 0)
        return Read(*(a + b for a, b in zip(self, own, strict=True)))

    def joined(self, other: Read) -> Read:
        return Read(*(a + b for a, b in zip(self, other, strict=True)))


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
        self._since_chunk = _SPILL
        """Steps since a chunk was launched."""
        self._window = Read()
        self._window_s = 0.0
        self._window_steps = 0
        self._owed_s = 0.0

    def decoded(self) -> None:
        """The host has just read the tokens of the last step."""
        now = self._clock()
        if self._last is not None and self._was_decoding:
            self._interval(now - self._last)
        self._last, self._was_decoding = now, True
        self._owed_s = max(self._owed_s - self.step_s, 0.0)

    def read(self, read: Read, *, decoding: bool) -> None:
        """Prompt chunks were launched in this step; those of the last step are done."""
        if not decoding:
            now = self._clock()
            if self._last is not None and not self._was_decoding and self._window.chunks:
                self._learn(now - self._last, self._window)
            self._last, self._was_decoding, self._owed_s = now, False, 0.0
            self._window, self._window_s, self._window_steps, self._since_chunk = read, 0.0, 0, 0
            return
        if read.chunks:
            self._since_chunk = 0
            self._window_steps += 1
            self._window = self._window.joined(read)
            self._owed_s += self._owing(read)

    @property
    def owes(self) -> bool:
        """Whether the decode steps have yet to be given their share of time."""
        return self._owed_s > 0

    def idle(self) -> None:
        """Nothing runs: the time until the next step says nothing."""
        self._last, self._owed_s, self._window = None, 0.0, Read()

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

    def _owing(self, read: Read) -> float:
        """Decode time to be given for what was read, by the present estimate."""
        return self.cost(Read(read.owing_chunks, read.owing_tokens)) * DECODE_SHARE / (1 - DECODE_SHARE)

    def _interval(self, seconds: float) -> None:
        """Time between the reads of two steps."""
        self._since_chunk += 1
        if self._since_chunk > _SPILL:
            self.step_s *= _correction(seconds, self.step_s)
        if not self._window.chunks:
            return
        self._window_s += seconds - self.step_s
        if self._since_chunk >= _SPILL or self._window_steps >= _WINDOW:
            window, self._window = self._window, Read()
            owed_before = self._owing(window)
            self._learn(self._window_s, window)
            # What the estimate missed is still to be given, or was given too much.
            self._owed_s = max(self._owed_s + self._owing(window) - owed_before, 0.0)
            self._window_s, self._window_steps = 0.0, 0

    def _learn(self, seconds: float, read: Read) -> None:
        self._largest = max(self._largest, read.tokens // read.chunks)
        correction = _correction(max(seconds, 0.0), self.cost(read))
        # The larger part of the cost is what was mismeasured.
        if read.tokens * self.token_s > read.chunks * self.fixed_s:
            self.token_s *= correction
        else:
            self.fixed_s *= correction


def _correction(measured: float, expected: float) -> float:
    ratio = min(max(measured / max(expected, 1e-9), 1 / _MOST), _MOST)
    return float(ratio**_WEIGHT)
