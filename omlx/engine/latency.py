"""What forwards cost, by their size: chunks of a prompt by their tokens, decode steps by their rows.

Neither a line nor a curve fits all devices: on one the tokens cost, on another each forward does, however small, and
some sizes meet a slower kernel. So every size has its own estimate, and two things that always hold tie them
together: a larger forward takes no less, and twice the tokens take at most twice as long. So one measurement
corrects all others only as far as it must, and a size that was once found too dear comes down again with the smaller
ones.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

CHUNKS = (16, 32, 64, 128, 256, 512, 1024, 2048)
"""Sizes that are chosen: few, so that the device sees few shapes."""
ROWS = (1, 2, 4, 8, 16, 32, 64)
_WEIGHT = 0.5
"""Of a new measurement against the ones before."""
_MOST = 4.0
"""A measurement counts as at most so many times the expected: the first run of a shape compiles for seconds."""
_WORTH = 0.85
"""Of the best rate (tokens per second) that a time allows."""


class PrefillChunks(NamedTuple):
    """Chunks that were read of prompts, by their tokens: all, and those for which decode steps are to be given time."""

    chunks: tuple[int, ...] = ()
    owing: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        return sum(self.chunks)

    def plus(self, tokens: int, *, owing: bool) -> PrefillChunks:
        """One more chunk."""
        return self.joined(PrefillChunks((tokens,), (tokens,) if owing else ()))

    def joined(self, other: PrefillChunks) -> PrefillChunks:
        return PrefillChunks(self.chunks + other.chunks, self.owing + other.owing)


class LatencyModel:
    """Seconds of a forward of so many tokens, at first `fixed_s + tokens * token_s`; `sizes` are kept apart."""

    def __init__(self, fixed_s: float, token_s: float, sizes: tuple[int, ...] = CHUNKS) -> None:
        self._sizes = sizes
        self._seconds = [fixed_s + size * token_s for size in sizes]
        self._stalls = Stalls()

    @property
    def least_s(self) -> float:
        """Of the smallest: about what any forward latency."""
        return self._seconds[0]

    def of(self, tokens: int) -> float:
        """Expected seconds of any size."""
        sizes = self._sizes
        if tokens <= sizes[0]:
            return self._seconds[0]
        if tokens >= sizes[-1]:
            return self._seconds[-1] * tokens / sizes[-1]
        index = bisect_left(sizes, tokens)
        share = (tokens - sizes[index - 1]) / (sizes[index] - sizes[index - 1])
        return self._seconds[index - 1] * (1 - share) + self._seconds[index] * share

    def together(self, chunks: tuple[int, ...]) -> float:
        """Expected seconds of several chunks."""
        return sum(map(self.of, chunks))

    def within(self, seconds: float) -> int:
        """The largest size that takes no longer than `seconds`, or the smallest of all: or nothing would be read."""
        return max((size for size, cost in self._each() if cost <= seconds), default=self._sizes[0])

    def worthwhile_s(self, seconds: float) -> float:
        """Of the shortest chunk that reads about as fast as any that takes no longer than `seconds`."""
        rates = {cost: size / cost for size, cost in self._each() if cost <= seconds}
        best = max(rates.values(), default=0.0)
        return min((cost for cost, rate in rates.items() if rate >= _WORTH * best), default=self.least_s)

    def learn(self, seconds: float, chunks: tuple[int, ...]) -> None:
        """Chunks of these sizes took so many seconds together; a single stall is not counted."""
        expected = self.together(chunks)
        if self._stalls.is_one(seconds, expected):
            return
        factor = correction(seconds, expected)
        near = sorted({min(bisect_left(self._sizes, tokens), len(self._sizes) - 1) for tokens in chunks})
        for index in near:
            self._seconds[index] *= factor
        for index in near:
            self._tie(index)

    def _each(self) -> zip[tuple[int, float]]:
        return zip(self._sizes, self._seconds, strict=True)

    def _tie(self, index: int) -> None:
        """Make the other sizes agree with the one that was measured."""
        for other, size in enumerate(self._sizes):
            bounds = sorted((self._seconds[index], self._seconds[index] * size / self._sizes[index]))
            self._seconds[other] = min(max(self._seconds[other], bounds[0]), bounds[1])


class Stalls:
    """Tells a *stall* (a moment in which the process did not get on: a sleeping machine, a busy processor, a lock) from
    a price that has changed: what takes far longer than expected counts only if the next measurement does so too."""

    def __init__(self) -> None:
        self._was_slow = False

    def is_one(self, measured: float, expected: float) -> bool:
        """To be asked of each measurement, in order; seconds. Whether this one is to be left out."""
        was_slow, self._was_slow = self._was_slow, measured > _MOST * expected
        return self._was_slow and not was_slow


def correction(measured: float, expected: float) -> float:
    """What to multiply an estimate with."""
    ratio = min(max(measured / max(expected, 1e-9), 1 / _MOST), _MOST)
    return float(ratio**_WEIGHT)
