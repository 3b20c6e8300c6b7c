"""Full-attention caches of several rows, as one rectangle that ends at the same column for all of them.

Shorter rows are padded on the left; a mask hides the padding, and without any the rectangle is used like a plain cache.
Where the rows stand (`Rows`) is the same in every layer, so the layers of a batch share it: one addition per step
instead of one per layer, each a kernel on a GPU. The arrays may have room for further rows and columns, so that a row
that joins is written into its place and nothing else moves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import create_attention_mask

ROOM = 256
"""Caches grow by so many tokens, where the device does not care about their size."""
_MORE_ROWS = 4
"""A running batch that is copied for want of room gets room for one row more for each so many."""
_LONGER = 64
"""A running batch that is copied for a longer newcomer gets a multiple of so many columns: the next one fits."""
_SHRINK = 4
"""Arrays of so many times the rows that are left are given up."""


Columns = Callable[[int], int]
"""How many columns a cache gets that is to hold so many tokens and more: a device may care about the size."""


def by_steps(end: int) -> int:
    """The next multiple of `ROOM`."""
    return (end // ROOM + 1) * ROOM


class Rows:
    """How many tokens each row of a batch holds. All of them end at column `end`, by default that of the longest.

    `columns_for`: the size of arrays that have to grow.
    """

    def __init__(self, lengths: list[int], end: int = 0, columns_for: Columns = by_steps) -> None:
        self.columns_for = columns_for
        self.lengths = lengths
        """As they were at first."""
        self.count = len(lengths)
        self.end = max(end, *lengths)
        self.even = all(length == self.end for length in lengths)
        """No row has padding."""
        self._offsets = mx.array(lengths)
        self._padding = mx.array([self.end - length for length in lengths])[:, None, None, None]

    @property
    def offset(self) -> mx.array | int:
        """[B] tokens in each row: the position of its next one; one number where all are the same."""
        return self.end if self.even else self._offsets

    def advance(self, count: int) -> None:
        """Every layer has taken in `count` more tokens."""
        self.end += count
        if not self.even:
            self._offsets = self._offsets + count

    def mask(self, count: int, window: int | None, *, as_array: bool) -> Any:
        """[B, 1, count, end + count]: which columns each of the next `count` tokens may look at; as a plain cache's
        where no row has padding."""
        if self.even:
            return create_attention_mask(count, self.end, as_array, window)
        columns = mx.arange(self.end + count)
        mask = columns >= self._padding
        if count == 1 and window is None:
            return mask
        own = mx.arange(self.end, self.end + count)[:, None]
        mask = mask & (columns <= own)
        return mask if window is None else mask & (columns > own - window)


class PaddedKVCache:
    """One layer's keys and values [room for rows, H, room for columns, D]; its protocol is that of mlx-lm's caches."""

    def __init__(self, rows: Rows, keys: mx.array, values: mx.array) -> None:
        self.rows = rows
        self.keys, self.values = keys, values
        self._end = rows.end
        """Of what is in it; in the middle of a forward that is beyond `rows.end`."""

    @property
    def offset(self) -> mx.array | int:
        return self.rows.offset

    @property
    def state(self) -> tuple[mx.array, mx.array]:
        return self.keys_and_values()

    def size(self) -> int:
        return self.rows.end

    def empty(self) -> bool:
        return False

    def is_trimmable(self) -> bool:
        return False

    def make_mask(self, count: int, return_array: bool = False, window_size: int | None = None) -> Any:
        return self.rows.mask(count, window_size, as_array=return_array)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Put the next tokens' keys and values behind the others; all of them, for attention."""
        start = self.rows.end
        end = start + keys.shape[2]
        if end > self.keys.shape[2]:
            columns = self.rows.columns_for(end)
            self.keys, self.values = _longer(self.keys, columns), _longer(self.values, columns)
        self.keys[: self.rows.count, :, start:end, :] = keys
        self.values[: self.rows.count, :, start:end, :] = values
        self._end = end
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """All of them: for layers that look at another's."""
        count, end = self.rows.count, self._end
        return self.keys[:count, :, :end, :], self.values[:count, :, :end, :]


def _longer(array: mx.array, columns: int) -> mx.array:
    return mx.pad(array, [(0, 0), (0, 0), (0, columns - array.shape[2]), (0, 0)])


def rolled(array: mx.array, shifts: list[int]) -> mx.array:
    """[B, H, L, D] with row i moved to the right by `shifts[i]` columns; what falls out comes in again on the left."""
    columns = (mx.arange(array.shape[2])[None] - mx.array(shifts)[:, None]) % array.shape[2]
    return mx.take_along_axis(array, columns[:, None, :, None], axis=2)


class Stacking:
    """Where the rows of several caches come to stand in one: decided once, carried out in every layer.

    `lengths` and `ends` by part: the tokens of its rows, and the column they end at. `room` is how many rows the first
    part's arrays have room for where it is a rectangle of ours, a running batch; 0: it is none.
    """

    def __init__(self, lengths: list[list[int]], ends: list[int], room: int, columns_for: Columns = by_steps) -> None:
        every = [length for part in lengths for length in part]
        longest = max(every)
        self._counts = [len(part) for part in lengths]
        self._ends = ends
        self._in_place = ends[0] >= longest and room >= len(every)
        """The newcomers are written into the first part's arrays."""
        if not room:
            end = longest
        elif ends[0] >= longest:
            end = ends[0]
        else:
            end = -(-longest // _LONGER) * _LONGER
        self.rows = Rows(every, end, columns_for)
        self._room = len(every) + (len(every) // _MORE_ROWS if room else 0)

    def joined(self, parts: list[mx.array]) -> mx.array:
        """One layer's keys, or values, of all parts, which are as they were."""
        first, end = parts[0], self.rows.end
        if self._in_place and first.shape[2] >= end:
            whole = first[:]  # an array of its own: what is written into it does not show in the other
        else:
            whole = mx.zeros(
                (self._room, first.shape[1], self.rows.columns_for(end), first.shape[3]), dtype=first.dtype
            )
        row = 0
        for number, (part, count, own_end) in enumerate(zip(parts, self._counts, self._ends, strict=True)):
            if number or not self._in_place:
                whole[row : row + count, :, end - own_end : end] = part[:count, :, :own_end]
            row += count
        return whole


def selected(array: mx.array, keep: list[int], *, spare: int) -> mx.array:
    """The rows `keep` of [rows, H, columns, D], without the first `spare` columns. The array is as it was.

    A few rows that move to the places of others are all that is copied, where the array stays about as large.
    """
    moved = [place for place, row in enumerate(keep) if place != row]
    if spare or 2 * len(moved) > len(keep) or len(keep) * _SHRINK < array.shape[0]:
        return array[mx.array(keep), :, spare:]
    whole = array[:]
    if moved:
        whole[mx.array(moved)] = array[mx.array([keep[place] for place in moved])]
    return whole


def wasted(end: int, lengths: list[int]) -> int:
    """Columns at the left that no row needs any more and that are worth a copy of the others: many, or all padding."""
    spare = end - max(lengths)
    return spare if spare >= max(ROOM, end // 4) or len(set(lengths)) == 1 else 0
