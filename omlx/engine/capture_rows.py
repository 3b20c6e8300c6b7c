"""Handing the caches of several rows to the prefix store at once.

The store takes what it keeps from one sequence's caches. Rows of one forward, or of a batch, lie in shared arrays:
stacked once for all of them, each row's pieces are slices of one array instead of a few dozen (`omlx_cache.stacked`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from omlx_cache.capture import LiveCaches
from omlx_cache.layout import CacheLayout
from omlx_cache.stacked import StackedRow
from omlx_cache.store import PrefixStore

from omlx.engine import caches
from omlx.engine.sequence import Sequence

log = logging.getLogger(__name__)

_MOST_BYTES = 1 << 29
"""Of a stack: beyond, each row is taken by itself."""


class RowPlace(NamedTuple):
    """Where a sequence lies in caches of several rows."""

    sequence: Sequence
    row: int
    column: int
    """Of its token 0."""
    length: int


def capture(
    store: PrefixStore, held: caches.Caches, places: list[RowPlace], take: Callable[[RowPlace, LiveCaches], None]
) -> None:
    """Have `take` capture each sequence that is followed, from the rows of `held`. Never raises."""
    followed = [place for place in places if place.sequence.capture is not None]
    if not followed:
        return
    try:
        with store.layout.together():
            stacked = _stacked(store.layout, held, followed) if len(followed) > 1 else None
            for index, place in enumerate(followed):
                row: LiveCaches = stacked[index] if stacked is not None else _row(held, place)
                take(place, row)
    except Exception:
        log.warning("rows could not be captured for the prefix store", exc_info=True)
        for place in followed:
            place.sequence.capture = None


def _row(held: caches.Caches, place: RowPlace) -> caches.Caches:
    return caches.cut(held, place.row, place.column + place.length, place.length)


def _stacked(layout: CacheLayout, held: caches.Caches, places: list[RowPlace]) -> list[StackedRow] | None:
    """Stand-ins for the rows' caches; None where the model keeps more than keys and values, or they are too many."""
    first = max(min(place.column + place.sequence.capture.first_wanted for place in places), 0)
    end = max(place.column + place.length for place in places)
    if first >= end or len(places) * (end - first) * layout.bytes_per_token > _MOST_BYTES:
        return None
    parts = caches.columns(held, [place.row for place in places], first, end)
    arrays = layout.stack(parts) if parts is not None else None
    if arrays is None:
        return None
    return [StackedRow(arrays, index, place.column - first, place.length) for index, place in enumerate(places)]


def finished(store: PrefixStore, held: caches.Caches, places: list[RowPlace]) -> None:
    """Capture all of sequences that have ended."""

    capture(store, held, places, lambda place, row: place.sequence.capture.finish(row, _tokens(place)))


def _tokens(place: RowPlace) -> list[int]:
    return place.sequence.tokens[: place.length]
