"""Sliding windows: mlx-lm's `RotatingKVCache`, a ring buffer; in a batch of unequal rows its `BatchRotatingKVCache`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import BatchRotatingKVCache, RotatingKVCache

from omlx_cache.adapters.adapter import CacheAdapter, HeldTokens
from omlx_cache.padded import Rows, Stacking


class WindowAdapter(CacheAdapter):
    name = "window"
    attributes = (frozenset({"keys", "values", "offset", "max_size", "keep", "_idx"}),)
    classes = (RotatingKVCache, BatchRotatingKVCache)
    padding = "fresh"  # a window would lose tokens to padding

    def reads(self, fresh: Any) -> bool:
        return bool(fresh.keep == 0)  # tokens that always stay are no part of the ring

    def reach(self, cache: Any) -> int:
        return int(cache.max_size)

    def held(self, cache: Any) -> HeldTokens:
        parts = tuple(_in_order(part, cache._idx, cache.offset) for part in (cache.keys, cache.values))
        return HeldTokens(parts, cache.offset - parts[0].shape[2], cache.offset)

    def fill(self, cache: Any, parts: list[mx.array], position: int) -> None:
        cache.keys, cache.values = parts
        cache._idx = parts[0].shape[2]
        cache.offset = position

    def can_batch(self, cache: Any) -> bool:
        return super().can_batch(cache) and (type(cache) is BatchRotatingKVCache or cache.keep == 0)

    def native(self, fresh: Any) -> Any:
        if type(fresh).__name__ != "RotatingKVCache":
            return fresh
        return RotatingKVCache(max_size=fresh.max_size, keep=fresh.keep)

    def join(self, copies: Sequence[Any], lengths: list[list[int]], stacking: Stacking) -> Any:
        if copies[0].keys is None:
            return copies[0]  # a layer that shares another's cache and leaves its own unused
        window = _padded(copies[0], lengths[0])
        for cache, own in zip(copies[1:], lengths[1:], strict=True):
            window.extend(_padded(cache, own))
        return _plain(window, [length for part in lengths for length in part])

    def cut(self, copy: Any, row: int, end: int, length: int) -> Any:
        if copy.keys is None:
            return copy
        if isinstance(copy, BatchRotatingKVCache):
            copy.filter(mx.array([row]))
            return _plain(copy, [length])
        # It holds the last tokens, the padding behind them.
        keys, values = copy._temporal_order(copy.keys), copy._temporal_order(copy.values)
        copy._idx = stop = keys.shape[2] - (copy.offset - length)
        copy.keys, copy.values = keys[row : row + 1, :, :stop], values[row : row + 1, :, :stop]
        copy.offset = length
        return copy

    def select(self, copy: Any, keep: list[int], rows: Rows, spare: int) -> Any:
        if not isinstance(copy, BatchRotatingKVCache):
            return super().select(copy, keep, rows, spare)
        copy.filter(mx.array(keep))
        return _plain(copy, rows.lengths)


def _in_order(part: mx.array, index: int, offset: int) -> mx.array:
    """A ring buffer's tokens, oldest first; `index` is where the next token goes."""
    if index == part.shape[2]:
        return part
    if index < offset:
        return mx.concatenate([part[:, :, index:], part[:, :, :index]], axis=2)
    return part[:, :, :index]


def _padded(cache: Any, lengths: list[int]) -> Any:
    """A plain cache of rows of equal length as a padded one without padding."""
    if isinstance(cache, BatchRotatingKVCache):
        return cache
    rows, length = len(lengths), lengths[0]
    size = min(length, cache.max_size)
    padded = BatchRotatingKVCache(cache.max_size, [0] * rows)
    padded.keys = cache._temporal_order(cache.keys)[..., -size:, :]
    padded.values = cache._temporal_order(cache.values)[..., -size:, :]
    padded.offset = mx.array([length] * rows)
    padded._idx = padded._offset = size
    return padded


def _plain(cache: Any, lengths: list[int]) -> Any:
    """A padded cache as a plain one, where all of its rows have as many tokens."""
    if len(set(lengths)) > 1:
        return cache
    cache._temporal_order()
    size = min(lengths[0], cache.max_size)
    plain = RotatingKVCache(cache.max_size)
    plain.keys = cache.keys[..., cache._idx - size : cache._idx, :]
    plain.values = cache.values[..., cache._idx - size : cache._idx, :]
    plain.offset, plain._idx = lengths[0], size
    return plain


WINDOW = WindowAdapter()
