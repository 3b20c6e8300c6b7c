"""Putting rows' KV caches together and taking them apart: the one module here that knows mlx-lm's cache classes.

A *plain* cache (`KVCache`, …) has no notion of padding: it serves one row, or several whose lengths are equal. A
*padded* cache (`BatchKVCache`, …) is a rectangle whose shorter rows are padded on the left, which costs a mask in every
attention. So rows of equal length, one row above all, are kept in plain caches. Recurrent state (`ArraysCache`) has no
length.
A cache of any other class cannot be put together with another: such a model runs one sequence at a time.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import (
    ArraysCache,
    BatchKVCache,
    BatchRotatingKVCache,
    CacheList,
    KVCache,
    RotatingKVCache,
    make_prompt_cache,
)

Caches = list[Any]


def new(model: Any) -> Caches:
    """Empty caches for one row, one per layer that has any."""
    return list(make_prompt_cache(model))


def can_batch(caches: Caches) -> bool:
    """Whether rows with such caches can be decoded together."""
    return all(type(leaf) in {KVCache, ArraysCache} or _is_window(leaf) for leaf in leaves(caches))


def _is_window(leaf: Any) -> bool:
    return type(leaf) is RotatingKVCache and leaf.keep == 0


def leaves(caches: Caches) -> list[Any]:
    """The caches without the lists that group them."""
    found: list[Any] = []
    for cache in caches:
        found += leaves(list(cache.caches)) if isinstance(cache, CacheList) else [cache]
    return found


def arrays(caches: Caches) -> list[mx.array]:
    """Everything that has to be computed before a cache can be relied on."""
    found: list[mx.array] = []
    for leaf in leaves(caches):
        if isinstance(leaf, ArraysCache):
            found += [array for array in leaf.cache if array is not None]
        elif getattr(leaf, "keys", None) is not None:
            keys, values = leaf.keys, leaf.values
            found += [*keys, *values] if isinstance(keys, (list, tuple)) else [keys, values]
    return found


def size_bytes(caches: Caches) -> int:
    return sum(array.nbytes for array in arrays(caches))


def join(caches: Caches, lengths: list[int], other: Caches, length: int) -> Caches:
    """Rows of `lengths` and one more of `length` (plain caches, `other`), as padded or plain caches."""
    even = len({*lengths, length}) == 1
    joined = [_join(a, lengths, b, length) for a, b in zip(caches, other, strict=True)]
    return [_plain(cache, length) for cache in joined] if even else joined


def leave(caches: Caches, lengths: list[int], keep: list[int]) -> Caches:
    """The rows `keep` of a batch whose rows have `lengths`."""
    index = mx.array(keep)
    kept = [lengths[at] for at in keep]
    left = [_select(cache, lengths, keep, index) for cache in caches]
    return [_plain(cache, kept[0]) for cache in left] if len(set(kept)) == 1 else left


def row(caches: Caches, lengths: list[int], at: int) -> Caches:
    """One row of a batch as plain caches of its own; the batch is unchanged."""
    return leave([_copy(cache) for cache in caches], lengths, [at])


def _copy(cache: Any) -> Any:
    if isinstance(cache, CacheList):
        return CacheList(*(_copy(inner) for inner in cache.caches))
    fresh = object.__new__(type(cache))
    fresh.__dict__.update(cache.__dict__)
    return fresh


def _join(cache: Any, lengths: list[int], other: Any, length: int) -> Any:
    if isinstance(cache, CacheList):
        pairs = zip(cache.caches, other.caches, strict=True)
        return CacheList(*(_join(a, lengths, b, length) for a, b in pairs))
    if isinstance(cache, ArraysCache):
        cache.extend(other)
        # mlx-lm counts padding down in every step of a recurrent layer; unread, that grows a graph without end.
        cache.left_padding = cache.lengths = None
        return cache
    padded, single = _padded(cache, lengths), _padded(other, [length])
    padded.extend(single)
    return padded


def _padded(cache: Any, lengths: list[int]) -> Any:
    """A plain cache of rows of equal length as a padded one without padding."""
    if isinstance(cache, (BatchKVCache, BatchRotatingKVCache)):
        return cache
    rows, length = len(lengths), lengths[0]
    if isinstance(cache, RotatingKVCache):
        size = min(length, cache.max_size)
        padded = BatchRotatingKVCache(cache.max_size, [0] * rows)
        padded.keys = cache._temporal_order(cache.keys)[..., -size:, :]
        padded.values = cache._temporal_order(cache.values)[..., -size:, :]
        padded.offset = mx.array([length] * rows)
        padded._idx = padded._offset = size
        return padded
    padded = BatchKVCache([0] * rows)
    padded.keys, padded.values = cache.keys, cache.values
    padded.offset = mx.array([length] * rows)
    padded._idx = length
    return padded


def _plain(cache: Any, length: int) -> Any:
    """A cache whose rows all have `length` tokens as a plain one."""
    if isinstance(cache, CacheList):
        return CacheList(*(_plain(inner, length) for inner in cache.caches))
    if isinstance(cache, BatchRotatingKVCache):
        cache._temporal_order()
        size = min(length, cache.max_size)
        plain = RotatingKVCache(cache.max_size)
        plain.keys = cache.keys[..., cache._idx - size : cache._idx, :]
        plain.values = cache.values[..., cache._idx - size : cache._idx, :]
        plain.offset, plain._idx = length, size
        return plain
    if isinstance(cache, BatchKVCache):
        plain = KVCache()
        padding = cache._idx - length
        plain.keys = cache.keys[..., padding:, :] if padding else cache.keys
        plain.values = cache.values[..., padding:, :] if padding else cache.values
        plain.offset = length
        return plain
    return cache


def _select(cache: Any, lengths: list[int], keep: list[int], index: mx.array) -> Any:
    """Rows of any cache. Padding is known from `lengths`: asking the device for it would wait for the running step."""
    if isinstance(cache, CacheList):
        return CacheList(*(_select(inner, lengths, keep, index) for inner in cache.caches))
    if isinstance(cache, ArraysCache):
        cache.filter(index)
        return cache
    if isinstance(cache, BatchRotatingKVCache):
        cache.filter(index)
        return cache
    cache.keys, cache.values = cache.keys[index], cache.values[index]
    if isinstance(cache, BatchKVCache):
        kept = [lengths[at] for at in keep]
        spare = cache._idx - max(kept)
        if spare:
            cache.keys, cache.values = cache.keys[..., spare:, :], cache.values[..., spare:, :]
            cache._idx -= spare
        cache.offset = mx.array(kept)
        cache.left_padding = mx.array([cache._idx - length for length in kept])
    return cache
