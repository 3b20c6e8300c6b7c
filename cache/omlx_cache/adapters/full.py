"""Full attention: mlx-lm's `KVCache`; in a batch of unequal rows our own `PaddedKVCache`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from omlx_cache.adapters.adapter import CacheAdapter, HeldTokens
from omlx_cache.padded import PaddedKVCache, Rows, Stacking, rolled, selected


class FullAdapter(CacheAdapter):
    name = "full"
    attributes = (frozenset({"keys", "values", "offset"}),)
    classes = (KVCache, PaddedKVCache)
    padding = "behind"
    has_columns = True

    def held(self, cache: Any) -> HeldTokens:
        end = cache.offset
        return HeldTokens((cache.keys[:, :, :end], cache.values[:, :, :end]), 0, end)

    def fill(self, cache: Any, parts: list[mx.array], position: int) -> None:
        cache.keys, cache.values = parts
        cache.offset = position

    def native(self, fresh: Any) -> Any:
        return KVCache() if type(fresh).__name__ == "KVCache" else fresh

    def can_trim(self, cache: Any) -> bool:
        return type(cache) is KVCache  # the rows of a rectangle end together

    def join(self, copies: Sequence[Any], lengths: list[list[int]], stacking: Stacking) -> Any:
        if copies[0].keys is None:
            return copies[0]  # a layer that shares another's cache and leaves its own unused
        keys, values = [cache.keys for cache in copies], [cache.values for cache in copies]
        return PaddedKVCache(stacking.rows, stacking.joined(keys), stacking.joined(values))

    def cut(self, copy: Any, row: int, end: int, length: int) -> Any:
        if not isinstance(copy, PaddedKVCache):
            return super().cut(copy, row, end, length)
        plain = KVCache()
        columns = slice(end - length, end)
        plain.keys, plain.values = copy.keys[row : row + 1, :, columns], copy.values[row : row + 1, :, columns]
        plain.offset = length
        return plain

    def select(self, copy: Any, keep: list[int], rows: Rows, spare: int) -> Any:
        if not isinstance(copy, PaddedKVCache):
            return super().select(copy, keep, rows, spare)
        return PaddedKVCache(rows, *(selected(array, keep, spare=spare) for array in (copy.keys, copy.values)))

    def align(self, cache: Any, rows: Rows, shifts: list[int], end: int) -> Any:
        if cache.keys is None:
            return cache
        keys, values = (rolled(array[: rows.count, :, :end], shifts) for array in (cache.keys, cache.values))
        return PaddedKVCache(rows, keys, values)

    def columns(self, cache: Any, rows: mx.array, start: int, end: int) -> tuple[mx.array, mx.array] | None:
        if cache.keys is None:
            return None
        return cache.keys[:, :, start:end][rows], cache.values[:, :, start:end][rows]

    def room(self, cache: Any) -> tuple[int, int] | None:
        return (cache.offset, cache.keys.shape[2]) if type(cache) is KVCache and cache.keys is not None else None

    def resize(self, cache: Any, columns: int) -> None:
        cache.keys, cache.values = (_sized(array, cache.offset, columns) for array in (cache.keys, cache.values))


def _sized(array: mx.array, end: int, columns: int) -> mx.array:
    """The first `end` columns and room behind them."""
    return mx.pad(array[..., :end, :], [(0, 0), (0, 0), (0, columns - end), (0, 0)])


FULL = FullAdapter()
