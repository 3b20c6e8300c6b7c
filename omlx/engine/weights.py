"""How weights are held in memory: as stored (often quantized), or dense in some floating-point type.

The right answer depends on the device, not on taste: a CPU multiplies 16-bit and 4-bit matrices 3 to 100 times slower
than float32 ones, CUDA's quantized matrix product falls behind from four sequences on, Metal's does not. `auto` decides
by that and by what fits; the reason is kept for the log and for users.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from omlx.units import human_bytes

Device = Literal["cpu", "cuda", "metal"]
DTYPES = ("float32", "bfloat16", "float16")
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_SHARE = 0.7
"""Of the memory that is free, what dense weights may take; the rest is for the KV cache and for working."""


class WeightsError(ValueError):
    """`--weights` has a value that does not exist."""


class WeightsPlan(NamedTuple):
    """`dtype` None keeps each tensor's own type; of weights that stay quantized it is the type of what is not."""

    dequantize: bool
    dtype: str | None
    reason: str
    quantized: bool = False
    """The weights are held quantized."""

    @property
    def text(self) -> str:
        """For log, show and ps: "float32 (dequantized: …)"."""
        return f"{'quantized' if self.quantized else self.dtype or 'as stored'} ({self.reason})"


def choose(policy: str, *, device: Device, quantized: bool, parameters: int, free_bytes: int) -> WeightsPlan:
    """How to hold a model of `parameters` weights. Raises WeightsError for an unknown policy."""
    if policy == "quantized":
        reason = "as asked: not dequantized" if quantized else "as asked, but stored without quantization"
        return WeightsPlan(False, "float32" if device == "cpu" else None, reason, quantized)
    if policy == "dequantized":
        return WeightsPlan(True, _fast_type(device), "as asked: dequantized")
    if policy in DTYPES:
        return WeightsPlan(True, policy, "as asked")
    if policy != "auto":
        raise WeightsError(f"weights = {policy!r}: it must be auto, quantized, dequantized, {', '.join(DTYPES)}")
    if device == "metal" or (device == "cuda" and not quantized):
        return WeightsPlan(False, None, "fast here" if quantized else "not quantized", quantized)
    dtype = _fast_type(device)
    wanted = parameters * _BYTES[dtype]
    if wanted > _SHARE * free_bytes:
        # A CPU still wants its scales and norms in float32, whatever the codes are.
        reason = f"{dtype} would take {human_bytes(wanted)} of {human_bytes(free_bytes)} free"
        return WeightsPlan(False, "float32" if quantized and device == "cpu" else None, f"kept: {reason}", quantized)
    slow = "a CPU multiplies float32 fastest" if device == "cpu" else "quantized products are slow on CUDA"
    return WeightsPlan(quantized, dtype, f"{'dequantized' if quantized else 'converted'}: {slow}")


def _fast_type(device: Device) -> str:
    return "float32" if device == "cpu" else "bfloat16"


def held(text: str) -> str:
    """How weights are held, without the reason: of "float32 (dequantized: …) on 2 ranks" it is "float32 on 2 ranks".

    The reason may name the memory that was free, which is another at each load.
    """
    return re.sub(r" \(.*\)", "", text)
