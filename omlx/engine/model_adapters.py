"""Model adapters: changes to models whose code in mlx-lm is right for one prompt at once, but not in batches.

Rows of unequal length are padded on the left (`omlx_cache.padded`): their mask is [B, 1, L, S] and their offset [B],
where a single row has a mask [L, S] and a number. An adapter changes one loaded model: it gives modules of that
instance a subclass of their own class. mlx-lm's modules stay as they are. Whether the result is right is proven when a
model is loaded (`omlx.engine.load_checks`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import RotatingKVCache


def adapt(model: Any) -> None:
    """Adapt a model of mlx-lm, in place, where there is an adapter for its type."""
    package, _, name = type(model).__module__.rpartition(".")
    adapter = _ADAPTERS.get(name) if package == "mlx_lm.models" else None
    if adapter is not None:
        adapter(model)


def _extend(module: Any, extension: type) -> None:
    """Let `module` be an instance of `extension` on top of its own class."""
    module.__class__ = type(extension.__name__, (extension, type(module)), {})


class _Offsets:
    """Tokens in each row before the forward that is under way; None: the model's own number is right."""

    def __init__(self) -> None:
        self.rows: mx.array | None = None


def _row_offsets(cache: Any) -> mx.array | None:
    """[B] of a padded cache; None for a plain one."""
    offset = getattr(cache, "offset", None)
    return offset if isinstance(offset, mx.array) and offset.ndim == 1 else None


# ---------------------------------------------------------------- gemma2
class _GroupedScores:
    """Attention that computes scores [B, groups, heads per group, L, S]: the mask lacks an axis for the heads."""

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        if isinstance(mask, mx.array) and mask.ndim == 4 and self.repeats > 1:  # type: ignore[attr-defined]
            mask = mask[:, :, None]
        return super().__call__(x, mask, cache)  # type: ignore[misc, no-any-return]


def _gemma2(model: Any) -> None:
    for layer in model.layers:
        _extend(layer.self_attn, _GroupedScores)


# ---------------------------------------------------------------- afm7
class _NotesOffsets:
    """A network whose last layers take their position from the width of the keys: it notes the rows' own."""

    def __call__(self, inputs: mx.array, cache: Any = None) -> Any:
        offsets: _Offsets = self.offsets  # type: ignore[attr-defined]
        offsets.rows = _row_offsets(cache[-1]) if cache is not None else None
        try:
            return super().__call__(inputs, cache)  # type: ignore[misc]
        finally:
            offsets.rows = None


class _RowRope:
    """Rotary positions of layers that use another layer's keys."""

    def __call__(self, x: mx.array, offset: Any = 0) -> mx.array:
        rows = self.offsets.rows  # type: ignore[attr-defined]
        return super().__call__(x, offset=offset if rows is None else rows)  # type: ignore[misc, no-any-return]


def _afm7(model: Any) -> None:
    offsets = model.model.offsets = _Offsets()
    _extend(model.model, _NotesOffsets)
    for layer in model.model.kv_reuse_layers:
        rope = layer.self_attn.rope
        rope.offsets = offsets
        _extend(rope, _RowRope)


# ---------------------------------------------------------------- gpt_bigcode
class _FromZero:
    """A padded cache whose offset is the number 0."""

    offset = 0

    def __init__(self, cache: Any) -> None:
        self._cache = cache

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)


class _CountsFromZero:
    """A network that computes one list of positions for all rows: they count from 0, and the embedding adds the rest.

    Only its embedding of positions looks at the offset of the first cache.
    """

    def __call__(self, inputs: mx.array, cache: Any = None) -> Any:
        offsets: _Offsets = self.offsets  # type: ignore[attr-defined]
        offsets.rows = _row_offsets(cache[0]) if cache is not None else None
        if offsets.rows is None:
            return super().__call__(inputs, cache)  # type: ignore[misc]
        try:
            return super().__call__(inputs, [_FromZero(cache[0]), *cache[1:]])  # type: ignore[misc]
        finally:
            offsets.rows = None


class _RowPositions:
    """An embedding of positions [L]: the same for every row, or counted from where each row stands."""

    def __call__(self, positions: mx.array) -> mx.array:
        rows = self.offsets.rows  # type: ignore[attr-defined]
        return super().__call__(positions if rows is None else positions + rows[:, None])  # type: ignore[misc, no-any-return]


def _gpt_bigcode(model: Any) -> None:
    network = model.transformer
    network.offsets = network.wpe.offsets = _Offsets()
    _extend(network, _CountsFromZero)
    _extend(network.wpe, _RowPositions)


# ---------------------------------------------------------------- plamo3
class _WiderWindow:
    """A model that masks a prompt by one token more than its window caches hold: the caches hold that token too."""

    def make_cache(self) -> list[Any]:
        caches: list[Any] = super().make_cache()  # type: ignore[misc]
        for cache in caches:
            if isinstance(cache, RotatingKVCache):
                cache.max_size += 1
        return caches


def _plamo3(model: Any) -> None:
    _extend(model, _WiderWindow)


_ADAPTERS: dict[str, Callable[[Any], None]] = {
    "afm7": _afm7,
    "gemma2": _gemma2,
    "gpt_bigcode": _gpt_bigcode,
    "plamo3": _plamo3,
}
"""By model type."""
