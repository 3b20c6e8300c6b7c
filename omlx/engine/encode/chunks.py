"""A *chunk* is what an encoder computes at once: rows of similar length, from one job or several. Pure.

Jobs take turns to lead: the leader's longest row sets the width, and rows that nearly fill it come along, its own
first. So padding is bounded, single texts of many jobs share a chunk, and a long job does not keep others waiting.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from omlx.engine.latency import Stalls

MOST_ROWS = 256
MOST_TOKENS = 16384
LONGEST_WHOLE = 2048
"""A longer row that can be read in parts is never computed at once: what its attention takes grows by its square, which
the price of short rows does not tell."""
_FIRST_PART = 256
_LEAST_TOKENS = 32
_FIRST_TOKENS = 256
"""Of the first chunk: what a token takes is a guess then, and grows with the row."""
_RECENT = 0.5
"""Weight of the newest measurement."""


class ChunkPick(NamedTuple):
    """Rows `start` to `stop` of a queue."""

    queue: int
    start: int
    stop: int


def choose(queues: Sequence[Sequence[int]], budget: int) -> list[ChunkPick]:
    """The next chunk: at least one row, at most `budget` tokens with padding.

    Each queue holds the lengths of a job's rows, longest first; none is empty, and the first one leads.
    """
    width = queues[0][0]
    least = shortest(width)
    room = min(MOST_ROWS, max(1, budget // width))
    picks = []
    for number, lengths in enumerate(queues):
        start = bisect_left(lengths, -width, key=lambda length: -length)
        stop = min(bisect_left(lengths, 1 - least, key=lambda length: -length), start + room)
        if stop > start:
            picks.append(ChunkPick(number, start, stop))
            room -= stop - start
        if room == 0:
            break
    return picks


def shortest(width: int) -> int:
    """The shortest row that may be padded to `width`: a quarter of a chunk may be padding, or a few tokens a row."""
    return max(1, width - max(width // 4, 8))


class EncodeBudget:
    """How long a token takes, learnt from the chunks that were computed. A chunk is at most twice as large as any of
    them was."""

    def __init__(self, token_s: float) -> None:
        self._token_s = token_s
        self._known = _FIRST_TOKENS // 2
        self._stalls = Stalls()

    def budget(self, seconds: float) -> int:
        """Tokens that take about `seconds`."""
        return max(_LEAST_TOKENS, min(MOST_TOKENS, 2 * self._known, int(seconds / self._token_s)))

    def learn(self, tokens: int, seconds: float) -> None:
        self._known = max(self._known, tokens)
        if self._stalls.is_one(seconds, tokens * self._token_s):
            return
        self._token_s += _RECENT * (max(seconds / tokens, 1e-8) - self._token_s)


class PartBudget:
    """How long the next part of one row is: each looks at all parts before it, so the price comes from the last one."""

    def __init__(self, most: int) -> None:
        """`most`: tokens of the first part at most."""
        self._most = min(most, _FIRST_PART)
        self._token_s = 0.0

    def tokens(self, seconds: float) -> int:
        """Tokens that take about `seconds`; at most twice the last part."""
        if not self._token_s:
            return max(_LEAST_TOKENS, self._most)
        return max(_LEAST_TOKENS, min(self._most, int(seconds / self._token_s)))

    def learn(self, tokens: int, seconds: float) -> None:
        self._token_s = max(seconds / tokens, 1e-8)
        self._most = 2 * tokens
