"""How far two right computations of the same tokens may differ: the one place for tolerances of device and dtype.

A device does not compute a product the same way in every shape: a row alone, a row in a batch and a prompt cut into
other chunks go through other kernels, which add up in another order. What that does to a logit is bounded by the unit
roundoff u of the type that the products are computed in: 2**-24 in float32, 2**-11 in TF32 and float16, 2**-8 in
bfloat16. With the depth of our tiny models (2 to 6 layers, matrices scaled up so that logits reach 5 to 70) it stays
below `_STEPS` * u * the largest logit.

That bound does not hold where a model makes a choice inside: two experts with nearly equal scores are chosen
otherwise after a change of 1e-4, and everything behind it changes. So a `Reference` computes the same tokens in
several chunkings and takes what these differ by, at each position, as that position's own noise. A token is wrong
where its logit is lower than the best one by more than noise and bound, in every chunking.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

_ROUNDOFF = {"float32": 2.0**-24, "tf32": 2.0**-11, "float16": 2.0**-11, "bfloat16": 2.0**-8}
_STEPS = 16
"""Roundings in a row that all go the same way: more than any of our models shows (measured: up to 9)."""
_FLOAT32_FLOOR = 1e-4
"""In float32 sums of hundreds of products dominate: chunkings differ by up to 6e-5 at logits of any size."""


def on_gpu() -> bool:
    return bool(mx.default_device() != mx.Device(mx.cpu))


def tf32() -> bool:
    """Whether this process computes float32 products in TF32."""
    return on_gpu() and os.environ.get("MLX_ENABLE_TF32", "1") != "0"


def noise(dtype: str = "float32", scale: float = 1.0) -> float:
    """The largest difference of logits, or of other outputs, whose largest value is `scale`."""
    if dtype == "float32" and not tf32():
        return max(_FLOAT32_FLOOR, _STEPS * _ROUNDOFF["float32"] * scale) * (2 if on_gpu() else 1)
    return _STEPS * _ROUNDOFF["tf32" if dtype == "float32" else dtype] * scale


def within(tolerance: float, scale: float = 1.0) -> float:
    """A tolerance argued for full float32, on this device: in TF32 at least the noise of values up to `scale`."""
    return max(tolerance, noise("float32", scale)) if tf32() else tolerance


class Reference:
    """The logits behind `prompt` while `answer` is fed, computed by mlx-lm's model alone, in several chunkings.

    `logits`: [chunkings, len(answer), vocabulary] in float32. `most`: no chunk is longer than so many tokens, for tests
    of what longer ones compute.
    """

    def __init__(
        self, model: Any, prompt: Sequence[int], answer: Sequence[int], dtype: str = "float32", most: int = 0
    ) -> None:
        self.dtype = dtype
        tokens = [*prompt, *answer[:-1]]
        ways = ([len(tokens)], [48] * (len(tokens) // 48 + 1), [len(prompt), *[1] * (len(answer) - 1)])
        if most:
            ways = ([most] * (len(tokens) // most + 1), [1] * len(tokens))
        rows = [_logits(model, tokens, chunks)[len(prompt) - 1 :] for chunks in ways]
        self.logits = mx.stack(rows)
        mx.eval(self.logits)

    def wrong(self, answer: Sequence[int]) -> list[int]:
        """Positions whose token is not the best one, nor as good as the best within the noise there."""
        best = self.logits.max(axis=-1)
        chosen = mx.take_along_axis(self.logits, mx.array(answer)[None, :, None], axis=-1)[..., 0]
        deficit = (best - chosen).min(axis=0)
        spread = mx.abs(self.logits - self.logits[:1]).max(axis=(0, 2))
        allowed = spread + noise(self.dtype, float(mx.abs(self.logits).max()))
        return [at for at, value in enumerate((deficit > allowed).tolist()) if value]


def _logits(model: Any, tokens: list[int], chunks: Sequence[int]) -> mx.array:
    """[len(tokens), vocabulary]: a forward for each chunk length in turn, until the tokens are used up."""
    caches, rows, start = make_prompt_cache(model), [], 0
    for size in chunks:
        part = tokens[start : start + size]
        if part:
            rows.append(model(mx.array([part]), cache=caches)[0].astype(mx.float32))
            mx.eval(rows[-1])
        start += size
    return mx.concatenate(rows)


class Greedy(list[int]):
    """Tokens of greedy decoding that equal other tokens up to the first one that noise may have decided.

    Behind such a token the two sequences are two conversations, and comparing them says nothing.
    """

    def __init__(self, tokens: Sequence[int], margins: Sequence[float], allowed: float) -> None:
        super().__init__(tokens)
        self._margins = margins
        self._allowed = allowed

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list) or len(other) != len(self):
            return False
        first = next((at for at, (mine, theirs) in enumerate(zip(self, other, strict=True)) if mine != theirs), None)
        return first is None or self._margins[first] <= self._allowed

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]
