"""A *cache adapter*: all that the store and the engine do with one class of caches.

The store reads what a cache holds (`held`) and refills a fresh one (`fill`). The engine puts the rows of several
caches together (`join`) and takes them apart (`cut`, `select`). The base class here has what suits every class that
keeps `keys` and `values`; an adapter overrides what differs for its class.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import mlx.core as mx

from omlx_cache.padded import Rows, Stacking

Padding = Literal["behind", "fresh", "never"]
"""Whether a forward may pad shorter rows behind their tokens: yes, only while the cache is empty, or not at all."""


class HeldTokens(NamedTuple):
    """The tokens a sliceable cache holds: arrays [1, heads, end - first, width] for positions [first, end)."""

    parts: tuple[mx.array, ...]
    first: int
    end: int


class CacheAdapter:
    """Reads, refills, joins and divides caches of one class. Without `classes`, its rows never share a batch."""

    name: ClassVar[str] = ""
    attributes: ClassVar[tuple[frozenset[str], ...]] = ()
    """The instance attributes of the caches that it reads: of mlx-lm's classes and mlx-vlm's."""
    classes: ClassVar[tuple[type, ...]] = ()
    """The classes whose rows can share a batch, and what they become there."""
    padding: ClassVar[Padding] = "never"
    keeps_state: ClassVar[bool] = False
    """It has no tokens that could be sliced: see `state`."""
    has_columns: ClassVar[bool] = False
    """All tokens of all rows stand in the columns of a rectangle: `align`, `columns`, `room` and `resize`."""

    # ------------------------------------------------------------ the store: one sequence
    def reads(self, fresh: Any) -> bool:
        """Whether a `fresh` cache looks like one of this class; it still has to behave so."""
        return True

    def reach(self, cache: Any) -> int:
        """How many tokens back the layer looks; 0 for all of them."""
        return 0

    def held(self, cache: Any) -> HeldTokens:
        raise NotImplementedError

    def fill(self, cache: Any, parts: list[mx.array], position: int) -> None:
        """Make the fresh `cache` stand behind token `position`; `parts` hold its last `reach` tokens."""
        raise NotImplementedError

    # ------------------------------------------------------------ the engine: rows of a batch
    def can_batch(self, cache: Any) -> bool:
        return type(cache) in self.classes

    def can_trim(self, cache: Any) -> bool:
        """Whether the last tokens can be taken back out."""
        return False

    def native(self, fresh: Any) -> Any:
        """mlx-lm's cache for a `fresh` one of mlx-vlm, where the two have one like it."""
        return fresh

    def arrays(self, cache: Any) -> list[mx.array]:
        """All that has to be computed before the cache can be relied on."""
        keys: Any = getattr(cache, "keys", None)
        if keys is None:
            return []
        return [*keys, *cache.values] if isinstance(keys, list | tuple) else [keys, cache.values]

    def copy(self, cache: Any) -> Any:
        """Another cache with the same arrays."""
        fresh = object.__new__(type(cache))
        fresh.__dict__.update(cache.__dict__)
        return fresh

    def join(self, copies: Sequence[Any], lengths: list[list[int]], stacking: Stacking) -> Any:
        """The rows of all caches as one; `lengths` are those of each cache's rows. The caches may be changed."""
        raise NotImplementedError

    def cut(self, copy: Any, row: int, end: int, length: int) -> Any:
        """One row as a plain cache of `length` tokens; in a padded rectangle they stand before column `end`."""
        if copy.keys is not None:
            copy.keys, copy.values = copy.keys[row : row + 1, :, :length], copy.values[row : row + 1, :, :length]
            copy.offset = length
        return copy

    def select(self, copy: Any, keep: list[int], rows: Rows, spare: int) -> Any:
        """The rows `keep`; `rows` is where they stand, without `spare` columns at the left."""
        if copy.keys is not None:
            copy.keys, copy.values = (array[mx.array(keep)] for array in (copy.keys, copy.values))
        return copy

    # ------------------------------------------------------------ columns
    def align(self, cache: Any, rows: Rows, shifts: list[int], end: int) -> Any:
        """Rows that were padded behind their tokens, up to column `end`, padded on the left instead."""
        raise NotImplementedError

    def columns(self, cache: Any, rows: mx.array, start: int, end: int) -> tuple[mx.array, mx.array] | None:
        """Keys and values of the columns [start, end) of these rows; None where the layer has none of its own."""
        raise NotImplementedError

    def room(self, cache: Any) -> tuple[int, int] | None:
        """Of a plain cache: the columns in use, and all that its arrays have; None: there are no arrays yet."""
        return None

    def resize(self, cache: Any, columns: int) -> None:
        """Give the arrays of a plain cache so many columns."""
        raise NotImplementedError


ANY = CacheAdapter()
"""For a cache of an unknown class: it runs in a batch of one, and nothing of it is stored."""
