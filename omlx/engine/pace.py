"""How fast this device reads and decodes: measured while it works, it decides how much of a prompt fits between steps.

Nothing is waited for just to be measured. The host blocks once per step, for the tokens of the step before; the time
between two such moments is one decode step and the prompt chunk that the device worked on between them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from omlx.engine.scheduler import prefill_budget

_WEIGHT = 0.3
"""Of a new measurement against the ones before."""


class Pace:
    """Starts from the figures of a calibration: prompt tokens per second and seconds per decode step."""

    def __init__(self, *, tokens_per_s: float, step_s: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self.tokens_per_s = tokens_per_s
        self.step_s = step_s
        self._clock = clock
        self._last: float | None = None
        self._chunks = (0, 0)
        """Prompt tokens launched in the last step and in the one before it."""
        self._budget = 0
        self._was_decoding = False

    def decoded(self) -> None:
        """The host has just read the tokens of the last step."""
        now = self._clock()
        if self._last is not None and self._was_decoding:
            # The chunk of the last step stands behind this step's decode in the device's queue: it is still to come.
            self._learn(now - self._last, self._chunks[1], decoding=True)
        self._last, self._was_decoding = now, True
        self._chunks = (0, self._chunks[0])

    def launched(self, tokens: int, *, decoding: bool) -> None:
        """Prompt tokens were launched in this step, and those of the last step are done."""
        if decoding:
            self._chunks = (tokens, self._chunks[1])
            return
        now = self._clock()
        if self._last is not None and not self._was_decoding:
            self._learn(now - self._last, self._chunks[0], decoding=False)
        self._last, self._was_decoding = now, False
        self._chunks = (tokens, 0)

    def budget(self, max_gap_s: float, *, decoding: bool) -> int:
        """Prompt tokens to launch in this step."""
        self._budget = prefill_budget(
            tokens_per_s=self.tokens_per_s, step_s=self.step_s, max_gap_s=max_gap_s, decoding=decoding
        )
        return self._budget

    def _learn(self, seconds: float, chunk: int, *, decoding: bool) -> None:
        if chunk == 0:
            if decoding:
                self.step_s += _WEIGHT * (seconds - self.step_s)
            return
        reading = seconds - self.step_s if decoding else seconds
        # A tail of a few tokens says little: its cost is that of a step, not of its tokens.
        if reading > 0 and 2 * chunk >= self._budget:
            self.tokens_per_s += _WEIGHT * (chunk / reading - self.tokens_per_s)
