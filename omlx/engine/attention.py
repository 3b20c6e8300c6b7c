"""Attention on CUDA, where MLX's fused kernel often costs more to prepare than it saves.

MLX lets cuDNN plan its fused attention for each shape of queries and keys, which takes the host 45 to 65 ms (H200)
however small the work is. A chunk of a prompt is nearly always a shape of its own: its length, and how much stands
before it; so are rounds of guesses, pictures and batches of texts to embed. Where there is little to compute, two
matrix products with a softmax between them are done long before such a plan is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import mlx.core as mx

_MOST_SCORES = 1 << 24
"""Larger matrices of scores (32 MiB of 16-bit numbers) are left to the fused kernel. At this size the other way takes a
forward of 28 layers about 10 ms more (H200), at twice the size 50: every layer wants new memory."""
_LARGEST_HEAD = 128
"""Wider heads are never given to cuDNN."""
_PLANNED = (mx.float16, mx.bfloat16)


def prepare() -> None:
    """Have all models of this process take the cheaper way. Without a CUDA device nothing changes."""
    fused = mx.fast.scaled_dot_product_attention
    if mx.cuda.is_available() and not isinstance(fused, _Chooser):
        mx.fast.scaled_dot_product_attention = _Chooser(fused)


class _Chooser:
    """Stands in for `mx.fast.scaled_dot_product_attention`, which models look up at each call."""

    def __init__(self, fused: Callable[..., mx.array]) -> None:
        self._fused = fused

    def __call__(self, q: mx.array, k: mx.array, v: mx.array, *, scale: float, **options: Any) -> mx.array:
        if _is_planned(q) and q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] <= _MOST_SCORES:
            return unfused(q, k, v, scale=scale, mask=options.get("mask"), sinks=options.get("sinks"))
        return self._fused(q, k, v, scale=scale, **options)


def _is_planned(q: mx.array) -> bool:
    """Whether cuDNN would be asked for a plan. Single queries, as in decode steps, have kernels of their own."""
    return q.shape[2] > 1 and q.shape[3] <= _LARGEST_HEAD and q.dtype in _PLANNED


def unfused(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    *,
    scale: float,
    mask: mx.array | str | None = None,
    sinks: mx.array | None = None,
) -> mx.array:
    """What `mx.fast.scaled_dot_product_attention` computes, of queries [B, H, L, D] and keys and values [B, G, S, D].

    H is a multiple of G. `mask` is "causal", or boolean or additive and broadcasts to [B, H, L, S]; `sinks` is [H].
    """
    batch, heads, length, width = q.shape
    groups, size = k.shape[1:3]
    each = heads // groups
    # The heads that share keys are more rows of one product.
    scores = (q * scale).reshape(batch, groups, each * length, width) @ k.swapaxes(-1, -2)
    scores = scores.reshape(batch, groups, each, length, size)
    if isinstance(mask, str):
        mask = _causal(length, size)
    elif mask is not None and mask.ndim > 2:
        mask = mask[None] if mask.ndim == 3 else mask
        shape = (mask.shape[0], groups, each) if mask.shape[1] == heads else (mask.shape[0], 1, 1)
        mask = mask.reshape(*shape, *mask.shape[2:])
    if mask is not None:
        scores = mx.where(mask, scores, mx.finfo(scores.dtype).min) if mask.dtype == mx.bool_ else scores + mask
    if sinks is not None:
        column = mx.broadcast_to(sinks.reshape(groups, each, 1, 1).astype(scores.dtype), (*scores.shape[:-1], 1))
        scores = mx.concatenate([column, scores], axis=-1)
    weights = mx.softmax(scores, axis=-1, precise=True)
    if sinks is not None:
        weights = weights[..., 1:]
    seen = weights.reshape(batch, groups, each * length, size).astype(v.dtype) @ v
    return seen.reshape(batch, heads, length, v.shape[-1])


@lru_cache(maxsize=1)  # all layers of a forward want the same
def _causal(length: int, size: int) -> mx.array:
    """[L, S]: the last query sees all keys."""
    return mx.arange(size - length, size)[:, None] >= mx.arange(size)[None]
