"""The scan: what the tiers hold for a prompt.

Walks a prompt's chain and asks both tiers for its pieces: full blocks by their keys, and at the *edge*, where the
full blocks end, the stored pieces that share most tokens with what follows. Only reads; the plan is made from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from omlx_cache.chain import Chain
from omlx_cache.cold import ColdTier
from omlx_cache.hot import HotTier
from omlx_cache.keys import common_media, common_tokens, media_mark
from omlx_cache.plan import Needs, RecordMatch
from omlx_cache.records import IndexEntry, Kind, Piece, RecordName, StoredSize


class Edge(NamedTuple):
    """Where stored full blocks end, and the stored piece behind them that goes along farthest.

    `matched` is the position up to which tokens agree with that piece; `same_images` is False when the tokens would
    agree but an image among them is another one.
    """

    level: int
    nearest: Piece | None
    matched: int
    same_images: bool


class Scan(NamedTuple):
    levels: tuple[tuple[RecordMatch, ...], ...]
    edge: Edge


def scan(chain: Chain, hot: HotTier, cold: ColdTier | None, needs: Needs) -> Scan:
    """All records that fit the chain's tokens, by block."""
    levels: list[list[RecordMatch]] = [[] for _ in range(chain.levels)]
    on_disk = cold.find([piece.key for piece in chain.blocks]) if cold else {}
    for level, piece in enumerate(chain.blocks):
        levels[level] += _exact(piece, needs.kinds, hot, on_disk)
    if Kind.KV in needs.kinds:
        edge = _first_incomplete(levels, len(chain.blocks))
        if Kind.STATE in needs.kinds:
            _add_snapshots(chain, levels[: edge + 1], hot, cold)
    else:
        _add_snapshots(chain, levels, hot, cold)
        edge = max((records[-1].end // chain.block_size for records in levels if records), default=0)
    nearest: list[Edge] = [Edge(edge, None, edge * chain.block_size, True)]
    if edge < chain.levels:
        for entry, is_hot in _neighbours(chain, edge, needs.kinds, hot, cold):
            met = _meet(chain, edge, entry)
            nearest.append(met)
            if met.matched > entry.piece.start + entry.skip and entry.kind != Kind.STATE:
                stored = StoredSize(0 if is_hot else entry.nbytes, entry.skip)
                levels[edge].append(_found(RecordName(entry.piece.key, entry.kind), entry.piece, stored, met.matched))
    best = max(nearest, key=lambda met: (met.matched, met.nearest is not None))
    return Scan(tuple(tuple(level) for level in levels), best)


def _exact(
    piece: Piece, kinds: Iterable[Kind], hot: HotTier, on_disk: Mapping[RecordName, StoredSize]
) -> list[RecordMatch]:
    pieces = []
    for kind in kinds:
        name = RecordName(piece.key, kind)
        stored = StoredSize(0, record.skip) if (record := hot.get(name)) else on_disk.get(name)
        if stored is not None:
            pieces.append(_found(name, piece, stored, piece.end))
    return pieces


def _found(name: RecordName, piece: Piece, stored: StoredSize, end: int) -> RecordMatch:
    start = piece.start + stored.skip
    return RecordMatch(name, start, end - start, end == piece.end, stored.nbytes)


def _first_incomplete(levels: list[list[RecordMatch]], full: int) -> int:
    return next((n for n in range(full) if not any(piece.name.kind == Kind.KV for piece in levels[n])), full)


def _add_snapshots(chain: Chain, levels: list[list[RecordMatch]], hot: HotTier, cold: ColdTier | None) -> None:
    """Add state snapshots that lie within a block (those at block ends are found with the blocks).

    What windowed layers held there comes with them: longer pieces of the block may have forgotten it.
    """
    pieces: dict[int, list[Piece]] = {}
    for level in range(len(levels)):
        parent = chain.parent(level)
        sizes = hot.sizes(parent, Kind.STATE) | (cold.sizes(parent, Kind.STATE) if cold else set())
        start = level * chain.block_size
        pieces[level] = [
            chain.piece(level, start + size) for size in sizes if size < chain.block_size and start + size <= len(chain)
        ]
    keys = [piece.key for records in pieces.values() for piece in records]
    on_disk = cold.find(keys) if cold and keys else {}
    for level, records in pieces.items():
        for piece in records:
            levels[level] += _exact(piece, (Kind.STATE, Kind.WINDOW), hot, on_disk)


def _neighbours(
    chain: Chain, level: int, kinds: Iterable[Kind], hot: HotTier, cold: ColdTier | None
) -> list[tuple[IndexEntry, bool]]:
    start = level * chain.block_size
    packed = chain.tokens(start, min(len(chain), start + chain.block_size))
    parent = chain.parent(level)
    entries = []
    for kind in kinds:
        in_ram = hot.neighbours(parent, kind, packed)
        entries += [(entry, True) for entry in in_ram]
        known = {entry.piece.key for entry in in_ram}
        neighbours = cold.neighbours(parent, kind, packed) if cold else []
        entries += [(entry, False) for entry in neighbours if entry.piece.key not in known]
    return entries


def _meet(chain: Chain, level: int, entry: IndexEntry) -> Edge:
    """How far a stored piece goes along with the chain."""
    piece = entry.piece
    start = level * chain.block_size
    packed = chain.tokens(start, min(len(chain), start + chain.block_size))
    matched = common_tokens(piece.packed, packed)
    agreed = common_media(piece.media, media_mark(chain.media, start, start + chain.block_size), matched)
    return Edge(level, piece, start + agreed, agreed == matched)
