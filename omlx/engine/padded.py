"""Full-attention caches of rows of unequal length, as one rectangle that ends at the same column for all of them.

Shorter rows are padded on the left; the mask hides the padding. Where the rows stand (`Rows`) is the same in every
layer, so the layers of a batch share it: one addition per step instead of one per layer, each a kernel on a GPU.
"""

from __future__ import annotations

import mlx.core as mx

ROOM = 256
"""Caches grow by so many tokens."""


class Rows:
    """How many tokens each row of a batch holds. All of them end at column `end`."""

    def __init__(self, lengths: list[int]) -> None:
        self.end = max(lengths)
        self.offset = mx.array(lengths)
        """[B] tokens in each row: the position of its next one."""
        self._padding = mx.array([self.end - length for length in lengths])[:, None, None, None]

    def advance(self, count: int) -> None:
        """Every layer has taken in `count` more tokens."""
        self.end += count
        self.offset = self.offset + count

    def mask(self, count: int, window: int | None) -> mx.array:
        """[B, 1, count, end + count]: which columns each of the next `count` tokens may look at."""
        columns = mx.arange(self.end + count)
        mask = columns >= self._padding
        if count == 1 and window is None:
            return mask
        own = mx.arange(self.end, self.end + count)[:, None]
        mask = mask & (columns <= own)
        return mask if window is None else mask & (columns > own - window)


class PaddedKVCache:
    """One layer's keys and values [B, H, columns, D]; its protocol is that of mlx-lm's caches."""

    def __init__(self, rows: Rows, keys: mx.array, values: mx.array) -> None:
        self.rows = rows
        self.keys, self.values = keys, values
        self._end = rows.end
        """Of what is in it; in the middle of a forward that is beyond `rows.end`."""

    @property
    def offset(self) -> mx.array:
        return self.rows.offset

    @property
    def state(self) -> tuple[mx.array, mx.array]:
        return self.keys, self.values

    def size(self) -> int:
        return self.rows.end

    def empty(self) -> bool:
        return False

    def is_trimmable(self) -> bool:
        return False

    def make_mask(self, count: int, return_array: bool = False, window_size: int | None = None) -> mx.array:
        return self.rows.mask(count, window_size)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Put the next tokens' keys and values behind the others; all of them, for attention."""
        start = self.rows.end
        end = start + keys.shape[2]
        if end > self.keys.shape[2]:
            self.keys, self.values = self._longer(self.keys, end), self._longer(self.values, end)
        self.keys[..., start:end, :] = keys
        self.values[..., start:end, :] = values
        self._end = end
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """All of them: for layers that look at another's."""
        return self.keys[..., : self._end, :], self.values[..., : self._end, :]

    def _longer(self, array: mx.array, end: int) -> mx.array:
        columns = (end + ROOM - 1) // ROOM * ROOM
        return mx.pad(array, [(0, 0), (0, 0), (0, columns - array.shape[2]), (0, 0)])
