"""Recurrent state: mlx-lm's `ArraysCache`, a list of arrays with no token axis. It cannot be sliced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache

from omlx_cache.adapters.adapter import CacheAdapter
from omlx_cache.padded import Rows, Stacking


class StateAdapter(CacheAdapter):
    name = "state"
    attributes = (
        frozenset({"cache", "left_padding", "lengths"}),
        frozenset({
            "cache", "_left_padding", "_left_padding_advance", "_lengths", "_lengths_advance", "_speculation",
            "_speculation_generation", "metadata_revision",
        }),
    )  # fmt: skip
    classes = (ArraysCache,)
    keeps_state = True

    def reads(self, fresh: Any) -> bool:
        return isinstance(fresh.cache, list)

    def state(self, cache: Any) -> list[mx.array | None]:
        return list(cache.cache)

    def fill_state(self, cache: Any, arrays: list[mx.array | None]) -> None:
        cache.cache = list(arrays)

    def arrays(self, cache: Any) -> list[mx.array]:
        return [array for array in cache.cache if array is not None]

    def copy(self, cache: Any) -> Any:
        fresh = super().copy(cache)
        fresh.cache = list(cache.cache)
        return fresh

    def join(self, copies: Sequence[Any], lengths: list[list[int]], stacking: Stacking) -> Any:
        first = copies[0]
        for other in copies[1:]:
            first.extend(other)
        # mlx-lm counts padding down in every step of a recurrent layer; unread, that grows a graph without end.
        first.left_padding = first.lengths = None
        return first

    def cut(self, copy: Any, row: int, end: int, length: int) -> Any:
        copy.cache = [None if array is None else array[row : row + 1] for array in copy.cache]
        copy.left_padding = copy.lengths = None
        return copy

    def select(self, copy: Any, keep: list[int], rows: Rows, spare: int) -> Any:
        copy.filter(mx.array(keep))
        return copy


STATE = StateAdapter()
