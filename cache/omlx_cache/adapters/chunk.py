"""Attention within chunks: mlx-lm's `ChunkedKVCache`. Its rows do not share a batch."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from omlx_cache.adapters.adapter import CacheAdapter, HeldTokens


class ChunkAdapter(CacheAdapter):
    name = "chunk"
    attributes = (frozenset({"keys", "values", "offset", "chunk_size", "start_position"}),)

    def reach(self, cache: Any) -> int:
        return int(cache.chunk_size)

    def held(self, cache: Any) -> HeldTokens:
        size = cache.offset - cache.start_position
        return HeldTokens((cache.keys[:, :, :size], cache.values[:, :, :size]), cache.start_position, cache.offset)

    def fill(self, cache: Any, parts: list[mx.array], position: int) -> None:
        cache.keys, cache.values = parts
        cache.start_position = position - parts[0].shape[2]
        cache.offset = position


CHUNK = ChunkAdapter()
