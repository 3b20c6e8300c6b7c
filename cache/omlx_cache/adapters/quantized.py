"""Quantized keys and values: mlx-lm's `QuantizedKVCache`. Its rows do not share a batch."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from omlx_cache.adapters.adapter import CacheAdapter, HeldTokens


class QuantizedAdapter(CacheAdapter):
    name = "quantized"
    attributes = (frozenset({"keys", "values", "offset", "group_size", "bits"}),)

    def held(self, cache: Any) -> HeldTokens:
        end = cache.offset
        return HeldTokens(tuple(part[:, :, :end] for part in (*cache.keys, *cache.values)), 0, end)

    def fill(self, cache: Any, parts: list[mx.array], position: int) -> None:
        cache.keys, cache.values = list(parts[:3]), list(parts[3:])
        cache.offset = position

    def cut(self, copy: Any, row: int, end: int, length: int) -> Any:
        if copy.keys is not None:
            for name in ("keys", "values"):
                setattr(copy, name, [part[row : row + 1, :, :length] for part in getattr(copy, name)])
            copy.offset = length
        return copy


QUANTIZED = QuantizedAdapter()
