"""The proof of an adapter: a cache that it refills goes on exactly as one that was never interrupted."""

from __future__ import annotations

import copy
from typing import Any

import mlx.core as mx

from omlx_cache.adapters.adapter import CacheAdapter


def is_proven(adapter: CacheAdapter, fresh: Any) -> bool:
    """Whether a cache refilled in the middle goes on exactly as one that was never interrupted."""
    reach, total, middle = 4, 11, 7
    original, refilled = copy.deepcopy(fresh), copy.deepcopy(fresh)
    for cache in (original, refilled):
        for attribute in ("max_size", "chunk_size"):
            if hasattr(cache, attribute):
                setattr(cache, attribute, reach)
    back = adapter.reach(original) or total
    fed = mx.arange(2 * total * 128, dtype=mx.float32).reshape(1, 2, total, 128) / 1024
    _feed(original, fed, 0, 5)
    _feed(original, fed, 5, 6)
    _feed(original, fed, 6, middle)
    held = adapter.held(original)
    first = max(0, middle - back)
    if held.end != middle or held.first > first:
        return False
    adapter.fill(refilled, [part[:, :, first - held.first :] for part in held.parts], middle)
    for cache in (original, refilled):
        _feed(cache, fed, middle, middle + 1)
        _feed(cache, fed, middle + 1, total)
    return _same_tail(adapter, original, refilled, back, total) and (
        len(held.parts) > 2 or bool(mx.array_equal(held.parts[0][:, :, first - held.first :], fed[:, :, first:middle]))
    )


def _feed(cache: Any, fed: mx.array, start: int, end: int) -> None:
    if hasattr(cache, "maybe_trim_front"):
        cache.maybe_trim_front()
    cache.update_and_fetch(fed[:, :, start:end], fed[:, :, start:end] + 1)


def _same_tail(adapter: CacheAdapter, a: Any, b: Any, back: int, total: int) -> bool:
    first, second = adapter.held(a), adapter.held(b)
    if first.end != total or second.end != total:
        return False
    tail = min(back, total)
    return all(
        bool(mx.array_equal(x[:, :, -tail:], y[:, :, -tail:])) for x, y in zip(first.parts, second.parts, strict=True)
    )
