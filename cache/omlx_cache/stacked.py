"""Stacked rows: the keys and values of several sequences, put together once and captured from row by row.

What capturing costs the host goes by arrays that are made. Row by row, each piece of each row is stacked from all
layers; here all layers of all rows are stacked first, and a piece is one slice of that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import mlx.core as mx


class StackedRow(NamedTuple):
    """One sequence of several, in place of its caches (`CacheLayout.length`, `first_held`, `capture`)."""

    arrays: tuple[mx.array, ...]
    """By the layout's groups [members, rows, heads, columns, width]."""
    row: int
    place: int
    """The column of its token 0; negative where its first tokens are not among the columns."""
    length: int

    @property
    def first(self) -> int:
        """The earliest of its tokens that is there."""
        return max(0, -self.place)

    def piece(self, start: int, end: int) -> tuple[mx.array, ...]:
        """Its tokens [start, end): by group [members, heads, tokens, width]."""
        columns = slice(self.place + start, self.place + end)
        return tuple(array[:, self.row, :, columns] for array in self.arrays)
