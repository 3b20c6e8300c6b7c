"""How fast this device reads and decodes: measured while it works, it decides how much of a prompt fits between steps.

Nothing is waited for just to be measured: the host blocks about once per step, for the tokens of the step before.
Where in the queue it blocks depends on the backend, so a chunk's time shows in one of the two intervals that follow
its launch. Therefore a step counts as undisturbed only beyond these, and chunks are measured over a *window* that
ends with them (or after several chunks in a row).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from omlx.engine.latency import CHUNKS, ROWS, LatencyModel, PrefillChunks
from omlx.engine.scheduler import DECODE_SHARE, EAGER_S, EAGER_TOKENS, IDLE_MOST_S, IDLE_S

MOST_TOKENS = 8192
"""Of a forward over several prompts."""
_GROWTH = 4
"""A chunk is at most so many times as long as the longest that was measured."""
_LONGEST_S = 1.0
"""Of prefill between two decode steps, however slow these are: clients give up on streams that stand still."""
_SPILL = 2
"""Steps until a chunk has shown in the time between two reads."""
_WINDOW = 6
"""Steps with chunks after which a window ends anyway."""


class PrefillBudget:
    """Starts from a calibration: seconds per decode step, per forward whatever its size, and per prompt token.

    `max_gap_s`: the longest wanted pause of a running sequence.
    """

    def __init__(
        self,
        *,
        step_s: float,
        fixed_s: float,
        token_s: float,
        largest: int,
        max_gap_s: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._steps = LatencyModel(step_s, 0.0, ROWS)
        self._rows = 1
        """In the newest step."""
        self._latency = LatencyModel(fixed_s, token_s)
        self._largest = largest
        """Tokens of the largest chunk whose time is known: beyond, attention may grow faster than the tokens."""
        self._max_gap_s = max_gap_s
        self._clock = clock
        self._last: float | None = None
        self._was_decoding = False
        self._since_chunk = _SPILL
        """Steps since a chunk was launched."""
        self._window = PrefillChunks()
        self._window_s = 0.0
        self._window_steps = 0
        self._owed_s = 0.0

    @property
    def step_s(self) -> float:
        """Expected seconds of a decode step like the newest."""
        return self._steps.of(self._rows)

    def decoded(self, rows: int) -> None:
        """The host has just read the tokens of the last step; the next, of so many rows, is launched."""
        now = self._clock()
        if self._last is not None and self._was_decoding:
            self._interval(now - self._last)
        elif self._last is not None and self._window.chunks:
            # What was read before anything decoded, and the first step behind it.
            self._learn(now - self._last - self.step_s, self._window)
            self._window = PrefillChunks()
        self._last, self._was_decoding, self._rows = now, True, rows
        self._owed_s = max(self._owed_s - self.step_s, 0.0)

    def read(self, read: PrefillChunks, *, decoding: bool) -> None:
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

    @property
    def eager_tokens(self) -> int:
        """How much of a prompt is read as fast as the gap allows."""
        if self._holds_gap:
            return EAGER_TOKENS
        worth = self._latency.worthwhile_s(self._slow_room_s)
        return min(EAGER_TOKENS, int(self._latency.within(worth) * EAGER_S / worth))

    @property
    def _holds_gap(self) -> bool:
        """Whether a step and a chunk worth its fixed cost fit into the gap: else it is more than this device can do."""
        return self._max_gap_s - self.step_s >= 2 * self._latency.least_s

    @property
    def _slow_room_s(self) -> float:
        """Time for prompts between two steps where the gap is not held anyway: short beside a step, it would only make
        more steps while few rows are in them."""
        return max(min(4 * self.step_s, _LONGEST_S), 2 * self._latency.least_s)

    def idle(self) -> None:
        """Nothing runs: the time until the next step says nothing."""
        self._last, self._owed_s, self._window = None, 0.0, PrefillChunks()

    def seconds(self, *, decoding: bool, eager: bool) -> float:
        """How long prompts may be read in this step; 0: not at all.

        `eager`: some prompt is still in its first tokens, which are read as fast as the gap allows. Beyond them it
        waits until decode steps have had the share of time that reading has run up, and its chunks are short.
        """
        if not decoding:
            # Where every forward takes long, however small, small chunks would take about as long as large ones.
            return max(IDLE_S, self._latency.worthwhile_s(IDLE_MOST_S))
        room = self._max_gap_s - self.step_s if self._holds_gap else self._slow_room_s
        if eager:
            return room
        return 0.0 if self.owes else self._latency.worthwhile_s(room)

    def left(self, seconds: float, read: PrefillChunks) -> float:
        """What is left of the time of this step; 0 where that is too little for a chunk to be worth its fixed cost."""
        left = seconds - self.cost(read)
        return left if not read.chunks or left >= 2 * self._latency.least_s else 0.0

    def tokens(self, seconds: float) -> int:
        """Tokens of a chunk that takes about so long, and is not much larger than any that was measured."""
        return min(self._latency.within(seconds), _GROWTH * self._largest)

    def forward_tokens(self, seconds: float) -> int:
        """As `tokens`, of a forward over several prompts: starting one costs the host the same, however many."""
        largest = CHUNKS[-1]
        if self._latency.within(seconds) < largest:
            return self.tokens(seconds)
        several = int(largest * seconds / self._latency.of(largest))
        return min(several, MOST_TOKENS, _GROWTH * self._largest)

    def cost(self, read: PrefillChunks) -> float:
        """Expected seconds."""
        return self._latency.together(read.chunks)

    def _owing(self, read: PrefillChunks) -> float:
        """Decode time to be given for what was read, by the present estimate."""
        return self._latency.together(read.owing) * DECODE_SHARE / (1 - DECODE_SHARE)

    def _interval(self, seconds: float) -> None:
        """Time between the reads of two steps."""
        self._since_chunk += 1
        if self._since_chunk > _SPILL:
            self._steps.learn(seconds, (self._rows,))
        if not self._window.chunks:
            return
        self._window_s += seconds - self.step_s
        if self._since_chunk >= _SPILL or self._window_steps >= _WINDOW:
            window, self._window = self._window, PrefillChunks()
            owed_before = self._owing(window)
            self._learn(self._window_s, window)
            # What the estimate missed is still to be given, or was given too much.
            self._owed_s = max(self._owed_s + self._owing(window) - owed_before, 0.0)
            self._window_s, self._window_steps = 0.0, 0

    def _learn(self, seconds: float, read: PrefillChunks) -> None:
        self._largest = max(self._largest, *read.chunks)
        self._latency.learn(max(seconds, 0.0), read.chunks)
