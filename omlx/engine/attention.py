"""Attention on CUDA, where MLX's fused kernel often costs more to prepare than it saves.

MLX lets cuDNN plan its fused attention for each shape of queries and keys, and for each way they lie in memory. A plan
takes the host 45 to 75 ms (H200), however small the work is, and a chunk of a prompt is nearly always a shape of its
own: its length, how much stands before it, how large the cache's buffer is. So are rounds of guesses, pictures and
batches of texts to embed. Hence three ways to compute the same:

- *unfused*: two matrix products with a softmax between them. No plan; 28 layers take 9 ms at the limit set here.
- *padded* to one of few sizes, with a mask. Each size is planned once in a process; the kernel then takes about twice
  as long as without the mask (28 layers, 32 heads, 2,000 queries of 7,900 keys: 26 ms against 12).
- the fused kernel as it is, where the mask would be larger than a plan is worth.

Single queries, as in decode steps, are planned by the size of the cache's buffer; `columns` says what size is good.
In a batch they have a mask, and cuDNN then costs the host more than the three unfused kernels do, plan or not: below
`_LONG` keys a step of 16 rows takes 7 ms unfused and 10 ms fused, one of 64 rows 7.5 and 12 ms (28 layers, H200).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import mlx.core as mx

_MOST_SCORES = 1 << 25
"""Matrices of scores up to this size (64 MiB of 16-bit numbers) are computed unfused."""
_LARGEST_MASK = 1 << 26
"""Masks up to this size (128 MiB) are read sooner than a plan is made: 2,048 queries of 32,768 keys."""
_LARGEST_HEAD = 128
"""Wider heads are never given to cuDNN."""
_PLANNED = (mx.float16, mx.bfloat16)
_SLICE = 256
"""MLX plans single queries where the buffer of keys is a multiple of this, mlx-lm's step; else not."""
_LONG = 4096
"""From so many keys on, the planned kernel for single queries is faster: 1.3 times at 8,000 keys, 3.5 at 32,000 (H200,
32 heads). Below, the other is."""
_LONG_STEP = 2048


def prepare() -> None:
    """Have all models of this process take the cheaper way. Without a CUDA device nothing changes."""
    fused = mx.fast.scaled_dot_product_attention
    if mx.cuda.is_available() and not isinstance(fused, Chooser):
        mx.fast.scaled_dot_product_attention = Chooser(fused)


class Chooser:
    """Stands in for `mx.fast.scaled_dot_product_attention`, which models look up at each call."""

    def __init__(self, fused: Callable[..., mx.array]) -> None:
        self._fused = fused

    def __call__(self, q: mx.array, k: mx.array, v: mx.array, *, scale: float, **options: Any) -> mx.array:
        if _is_batched_step(q, k, options.get("mask")):
            return unfused(q, k, v, scale=scale, mask=options.get("mask"), sinks=options.get("sinks"))
        if _is_planned(q):
            if q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] <= _MOST_SCORES:
                return unfused(q, k, v, scale=scale, mask=options.get("mask"), sinks=options.get("sinks"))
            if size_class(q.shape[2]) * size_class(k.shape[2]) * _masks(options.get("mask")) <= _LARGEST_MASK:
                return padded(self._fused, q, k, v, scale=scale, **options)
        return self._fused(q, k, v, scale=scale, **options)


def _is_planned(q: mx.array) -> bool:
    """Whether cuDNN would be asked for a plan, whatever the keys."""
    return q.shape[2] > 1 and _suits_cudnn(q)


def _is_batched_step(q: mx.array, k: mx.array, mask: mx.array | str | None) -> bool:
    """Whether these are the single queries of rows of unequal length, over few keys."""
    return q.shape[2] == 1 and k.shape[2] < _LONG and isinstance(mask, mx.array) and _suits_cudnn(q)


def _suits_cudnn(q: mx.array) -> bool:
    return q.shape[3] <= _LARGEST_HEAD and q.dtype in _PLANNED


def plans() -> bool:
    """Whether the sizes of caches matter on this device."""
    return isinstance(mx.fast.scaled_dot_product_attention, Chooser)


def columns(end: int) -> int:
    """How many columns a plain cache is to have that will hold `end` tokens."""
    if end < _LONG:
        return -(-end // (2 * _SLICE)) * 2 * _SLICE + 8
    return -(-end // _LONG_STEP) * _LONG_STEP


def suits(size: int, end: int) -> bool:
    """Whether a single query over `end` keys in a buffer of `size` columns needs no plan, or one worth its time."""
    return size % _SLICE != 0 if end < _LONG else size % _LONG_STEP == 0


def size_class(count: int) -> int:
    """`count`, rounded up to one of few sizes: powers of two up to 2,048, then four between two of them."""
    power = 1 << max(count - 1, 127).bit_length()
    if power <= _LONG_STEP:
        return power
    step = power // 8
    return -(-count // step) * step


def padded(
    attend: Callable[..., mx.array],
    q: mx.array,
    k: mx.array,
    v: mx.array,
    *,
    scale: float,
    mask: mx.array | str | None = None,
    sinks: mx.array | None = None,
) -> mx.array:
    """What `attend`, a `mx.fast.scaled_dot_product_attention`, computes, asked in one of few shapes."""
    length, size = q.shape[2], k.shape[2]
    rows, cols = size_class(length), size_class(size)
    if isinstance(mask, mx.array):
        bias = _stretched(_additive(mask, q.dtype), (length, size), (rows, cols))
    else:
        bias = _bias(length, size, rows, cols, mask == "causal", q.dtype)
    more = {} if sinks is None else {"sinks": sinks}
    attended = attend(_longer(q, rows), _longer(k, cols), _longer(v, cols), scale=scale, mask=bias, **more)
    return attended[:, :, :length]


def _masks(mask: mx.array | str | None) -> int:
    """How many different ones there are, of rows and heads."""
    return mask.size // (mask.shape[-2] * mask.shape[-1]) if isinstance(mask, mx.array) and mask.ndim > 2 else 1


def _longer(array: mx.array, size: int) -> mx.array:
    """[B, H, size, D], always a copy of its own: how an array lies in a larger buffer is part of a plan's shape."""
    return mx.contiguous(mx.pad(array, [(0, 0), (0, 0), (0, size - array.shape[2]), (0, 0)]))


def _additive(mask: mx.array, dtype: mx.Dtype) -> mx.array:
    if mask.dtype != mx.bool_:
        return mask.astype(dtype)
    return mx.where(mask, mx.array(0, dtype), mx.array(-float("inf"), dtype))


def _stretched(mask: mx.array, shape: tuple[int, int], wanted: tuple[int, int]) -> mx.array:
    """[..., rows, cols]: no query sees the keys that were added; what queries see that were added is cut off."""
    mask = mx.broadcast_to(mask, (*mask.shape[:-2], *shape))
    rest = [(0, 0)] * (mask.ndim - 2)
    hidden = mx.pad(mask, [*rest, (0, 0), (0, wanted[1] - shape[1])], constant_values=-float("inf"))
    return mx.contiguous(mx.pad(hidden, [*rest, (0, wanted[0] - shape[0]), (0, 0)]))


@lru_cache(maxsize=1)  # all layers of a forward want the same
def _bias(length: int, size: int, rows: int, cols: int, causal: bool, dtype: mx.Dtype) -> mx.array:
    """[1, 1, rows, cols]: zero where a query sees a key; the last of `length` queries sees all of `size` keys."""
    keys = mx.arange(cols)[None]
    seen = (
        mx.arange(size - length, size - length + rows)[:, None] >= keys
        if causal
        else mx.broadcast_to(keys < size, (rows, cols))
    )
    return _additive(seen, dtype)[None, None]


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
