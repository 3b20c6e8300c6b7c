"""Leaves: the caches of single layers, and how to read and refill them.

A *layer cache* is one cache object of a layer (a layer may hold several). What can be done with it is found by its
instance attributes and then proven by behaviour on a small copy: an adapter is only used for a cache that, refilled
from slices, goes on exactly as the original. Names of classes play no role, so the caches of mlx-lm and of mlx-vlm
are read alike; an attribute nobody expected makes the layer cache unknown. Only `layout` uses this module.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple, Protocol

import mlx.core as mx


class HeldTokens(NamedTuple):
    """The tokens a sliceable cache holds: arrays [1, heads, end - first, width] for positions [first, end)."""

    parts: tuple[mx.array, ...]
    first: int
    end: int


class Adapter(Protocol):
    """Reads and refills one class of sliceable caches."""

    name: str

    def reach(self, cache: Any) -> int:
        """How many tokens back the layer looks; 0 for all of them."""

    def held(self, cache: Any) -> HeldTokens: ...

    def fill(self, cache: Any, parts: list[mx.array], position: int) -> None:
        """Make the fresh `cache` stand behind token `position`; `parts` hold its last `reach` tokens."""


class _Full:
    name = "full"

    def reach(self, cache: Any) -> int:
        return 0

    def held(self, cache: Any) -> HeldTokens:
        end = cache.offset
        return HeldTokens((cache.keys[:, :, :end], cache.values[:, :, :end]), 0, end)

    def fill(self, cache: Any, parts: list[mx.array], position: int) -> None:
        cache.keys, cache.values = parts
        cache.offset = position


class _Window:
    name = "window"

    def reach(self, cache: Any) -> int:
        return int(cache.max_size)

    def held(self, cache: Any) -> HeldTokens:
        parts = tuple(_in_order(part, cache._idx, cache.offset) for part in (cache.keys, cache.values))
        return HeldTokens(parts, cache.offset - parts[0].shape[2], cache.offset)

    def fill(self, cache: Any, parts: list[mx.array], position: int) -> None:
        cache.keys, cache.values = parts
        cache._idx = parts[0].shape[2]
        cache.offset = position


def _in_order(part: mx.array, index: int, offset: int) -> mx.array:
    """A ring buffer's tokens, oldest first; `index` is where the next token goes."""
    if index == part.shape[2]:
        return part
    if index < offset:
        return mx.concatenate([part[:, :, index:], part[:, :, :index]], axis=2)
    return part[:, :, :index]


class _Chunk:
    name = "chunk"

    def reach(self, cache: Any) -> int:
        return int(cache.chunk_size)

    def held(self, cache: Any) -> HeldTokens:
        size = cache.offset - cache.start_position
        return HeldTokens((cache.keys[:, :, :size], cache.values[:, :, :size]), cache.start_position, cache.offset)

    def fill(self, cache: Any, parts: list[mx.array], position: int) -> None:
        cache.keys, cache.values = parts
        cache.start_position = position - parts[0].shape[2]
        cache.offset = position


class _Quantized:
    name = "quantized"

    def reach(self, cache: Any) -> int:
        return 0

    def held(self, cache: Any) -> HeldTokens:
        end = cache.offset
        return HeldTokens(tuple(part[:, :, :end] for part in (*cache.keys, *cache.values)), 0, end)

    def fill(self, cache: Any, parts: list[mx.array], position: int) -> None:
        cache.keys, cache.values = list(parts[:3]), list(parts[3:])
        cache.offset = position


class _State:
    """Recurrent state: a list of arrays with no token axis. Not an `Adapter`: it cannot be sliced."""

    name = "state"

    def arrays(self, cache: Any) -> list[mx.array | None]:
        return list(cache.cache)

    def fill(self, cache: Any, arrays: list[mx.array | None]) -> None:
        cache.cache = list(arrays)


STATE = _State()

_SLICEABLE: dict[frozenset[str], Adapter] = {
    frozenset({"keys", "values", "offset"}): _Full(),
    frozenset({"keys", "values", "offset", "max_size", "keep", "_idx"}): _Window(),
    frozenset({"keys", "values", "offset", "chunk_size", "start_position"}): _Chunk(),
    frozenset({"keys", "values", "offset", "group_size", "bits"}): _Quantized(),
}
_STATE_ATTRIBUTES = (
    frozenset({"cache", "left_padding", "lengths"}),
    frozenset({
        "cache", "_left_padding", "_left_padding_advance", "_lengths", "_lengths_advance", "_speculation",
        "_speculation_generation", "metadata_revision",
    }),
)  # fmt: skip


def adapter_of(fresh: Any) -> Adapter | _State | None:
    """The adapter that reads this class of cache, proven on a copy of the `fresh` one; None: unknown."""
    attributes = frozenset(vars(fresh)) if hasattr(fresh, "__dict__") else frozenset()
    if attributes in _STATE_ATTRIBUTES and isinstance(fresh.cache, list):
        return STATE
    adapter = _SLICEABLE.get(attributes)
    if adapter is None or getattr(fresh, "keep", 0) != 0:
        return None
    try:
        return adapter if _proven(adapter, fresh) else None
    except Exception:
        # Whatever a strange class raises here, the answer is the same: it is not one of those we can read.
        return None


def _proven(adapter: Adapter, fresh: Any) -> bool:
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


def _same_tail(adapter: Adapter, a: Any, b: Any, back: int, total: int) -> bool:
    first, second = adapter.held(a), adapter.held(b)
    if first.end != total or second.end != total:
        return False
    tail = min(back, total)
    return all(
        bool(mx.array_equal(x[:, :, -tail:], y[:, :, -tail:])) for x, y in zip(first.parts, second.parts, strict=True)
    )
