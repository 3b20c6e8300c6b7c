"""The plan: from where a prompt is restored.

A *plan* names the position behind which computing goes on and the records that bring fresh caches there. It is
decided by a pure function over a *scan* (what the tiers hold for this prompt), so that it can be tested without a
model or a disk. Rules: full-attention layers need every token up to the position, windowed layers the tokens of
their window, recurrent layers a snapshot at exactly that position; no position within an image; at least one token
stays to be computed. Among positions that can be restored, the one that is ready soonest wins: reading from a slow
disk may cost more than computing again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from omlx_cache.keys import Media
from omlx_cache.records import Kind, RecordName


class RecordMatch(NamedTuple):
    """A record whose arrays begin at token `start` and fit the prompt for `take` tokens."""

    name: RecordName
    start: int
    take: int
    exact: bool
    """Whether the record ends where `take` ends; only then its state snapshot is of use."""
    cold_bytes: int
    """Bytes to read from disk; 0 when it is in RAM."""

    @property
    def end(self) -> int:
        return self.start + self.take


Survey = Sequence[Sequence[RecordMatch]]
"""Per block of the prompt, the records that fit it."""


class Needs(NamedTuple):
    """What a model's restore takes; `window` in tokens."""

    kinds: frozenset[Kind]
    window: int = 0


class Rates(NamedTuple):
    """Measured speeds; 0 where nothing was measured yet."""

    seconds_per_cold_byte: float = 0.0
    seconds_per_token: float = 0.0


FREE = Rates()
ORDINARY_SSD = 1e-9
"""Seconds per byte, until this disk was measured: a fast device computes a short prefix sooner than it is read."""


class RecordUse(NamedTuple):
    """Take the first `take` tokens of this record's arrays, which begin at `start` (a state snapshot: all of it)."""

    name: RecordName
    start: int
    take: int
    cold_bytes: int
    """Bytes to read from disk; 0 when it is in RAM."""

    @property
    def cold(self) -> bool:
        return self.cold_bytes > 0


class RestorePlan(NamedTuple):
    """Restore to `position` by these records, in order of kind and token. Position 0: compute everything."""

    position: int
    uses: tuple[RecordUse, ...]
    cold_bytes: int
    possible: int
    """The farthest position that could be restored; beyond `position` when reading would take longer than computing."""

    @property
    def from_disk(self) -> int:
        """Tokens that have to be read from disk."""
        return self.tokens_of([use.name for use in self.uses if use.cold])

    def tokens_of(self, names: Collection[RecordName]) -> int:
        """Tokens whose keys and values (or, in purely recurrent models, whose state) these records bring."""
        if not self.uses:
            return 0
        main = self.uses[0].name.kind
        taken = sum(use.take for use in self.uses if use.name.kind == main and use.name in names)
        return self.position if taken and main == Kind.STATE else min(taken, self.position)


def plan_restore(
    scan: Survey, block_size: int, needs: Needs, tokens: int, media: Sequence[Media] = (), rates: Rates = FREE
) -> RestorePlan:
    """The plan for a prompt of this many tokens."""
    if not rates.seconds_per_token:
        rates = Rates(0.0, 1.0)
    elif not rates.seconds_per_cold_byte:
        rates = rates._replace(seconds_per_cold_byte=ORDINARY_SSD)
    best = RestorePlan(0, (), 0, 0)
    lowest = tokens * rates.seconds_per_token
    possible = 0
    for position in _candidates(scan, block_size, needs, tokens - 1, media):
        if possible and (tokens - position) * rates.seconds_per_token >= lowest:
            break  # Candidates come farthest first: computing the rest alone now costs more than the best found.
        uses = _uses(scan, block_size, needs, position)
        if uses is None:
            continue
        possible = max(possible, position)
        cold_bytes = sum(use.cold_bytes for use in uses)
        cost = cold_bytes * rates.seconds_per_cold_byte + (tokens - position) * rates.seconds_per_token
        if cost < lowest or (not best.position and cost == lowest):
            lowest = cost
            taken = tuple(
                RecordUse(use.name, use.start, min(use.take, position - use.start), use.cold_bytes) for use in uses
            )
            best = RestorePlan(position, taken, cold_bytes, 0)
    return best._replace(possible=max(possible, best.position))


def _candidates(scan: Survey, block_size: int, needs: Needs, limit: int, media: Sequence[Media]) -> Iterator[int]:
    """Positions worth a look, farthest first."""
    reachable = scan[: _unbroken(scan, block_size) + 1] if Kind.KV in needs.kinds else scan
    fitting = [piece for level in reachable for piece in level]
    if Kind.STATE in needs.kinds:
        ends = {piece.end for piece in fitting if piece.name.kind == Kind.STATE and piece.exact and piece.end <= limit}
    else:
        ends = {min(piece.end, limit) for piece in fitting} | {span.start for span in media if span.start <= limit}
    free = (end for end in ends if end > 0 and not any(span.start < end < span.end for span in media))
    return iter(sorted(free, reverse=True))


def _unbroken(scan: Survey, block_size: int) -> int:
    """Index of the first block whose keys and values are not all there (the farthest a restore can reach into)."""
    for index, level in enumerate(scan):
        if not any(piece.name.kind == Kind.KV and piece.end == (index + 1) * block_size for piece in level):
            return index
    return len(scan)


def _uses(scan: Survey, block_size: int, needs: Needs, position: int) -> list[RecordMatch] | None:
    """The records that restore to `position`, cheapest where there is a choice; None when one is missing."""
    uses: list[RecordMatch] = []
    for kind in sorted(needs.kinds):
        if kind == Kind.STATE:
            ending = [
                f for f in scan[(position - 1) // block_size] if f.name.kind == kind and f.exact and f.end == position
            ]
            if not ending:
                return None
            uses.append(min(ending, key=lambda piece: piece.cold_bytes))
            continue
        first = 0 if kind == Kind.KV else max(0, position - needs.window)
        for index in range(first // block_size, (position - 1) // block_size + 1):
            upto = min(position, (index + 1) * block_size)
            begin = max(first, index * block_size)
            covering = [
                piece for piece in scan[index] if piece.name.kind == kind and piece.start <= begin and piece.end >= upto
            ]
            if not covering:
                return None
            uses.append(min(covering, key=lambda piece: piece.cold_bytes))
    return uses
