"""MXFP4: weights as 4-bit floats (e2m1) in groups of 32 that share a power of two; quantizing in NumPy.

`mx.quantize` gives the same scales, and the same codes but for values exactly half-way between two. On a CPU it takes
some thirty times as long for this mode as for the affine one. Here a code is looked up by the upper half of a
float32, which is exact: the values half-way between two codes have nothing in the lower half.
"""

from __future__ import annotations

import functools
from typing import Final

import numpy as np
from numpy.typing import NDArray

GROUP: Final = 32
_LARGEST: Final = np.float32(6)
_HALF_WAY: Final = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
_PIECE: Final = 1 << 20
"""Weights quantized at a time, so that intermediate arrays stay in the processor's cache."""


def quantize(weights: NDArray[np.float32]) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
    """MLX's weights [..., columns / 8] and scales [..., columns / 32] of float32 [..., columns]."""
    groups = np.ascontiguousarray(weights).reshape(-1, GROUP)
    packed = np.empty((len(groups), GROUP // 2), np.uint8)
    scales = np.empty(len(groups), np.uint8)
    for start in range(0, len(groups), _PIECE // GROUP):
        piece = slice(start, start + _PIECE // GROUP)
        packed[piece], scales[piece] = _quantize(groups[piece])
    shape = weights.shape[:-1]
    return packed.view(np.uint32).reshape(*shape, -1), scales.reshape(*shape, -1)


def _quantize(groups: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    largest = np.maximum(groups.max(axis=-1), -groups.min(axis=-1)) / _LARGEST
    fraction, exponent = np.frexp(largest)
    # The least power of two that is not below; 1 for a group of zeros.
    exponent = np.clip(np.where(fraction == 0.5, exponent - 1, exponent), -127, 127)
    scaled = groups * np.ldexp(np.float32(1), -exponent)[:, None].astype(np.float32)
    codes = _codes()[scaled.view(np.uint16)[:, 1::2]]
    return codes[:, 0::2] | (codes[:, 1::2] << np.uint8(4)), (exponent + 127).astype(np.uint8)


@functools.cache
def _codes() -> NDArray[np.uint8]:
    """The code of a float32 by its upper 16 bits; the sign is bit 3, and no zero has one."""
    values = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
    with np.errstate(invalid="ignore"):  # half of the table's end are no numbers
        codes: NDArray[np.uint8] = np.searchsorted(_HALF_WAY, np.abs(values), side="right").astype(np.uint8)
    codes[(codes > 0) & np.signbit(values)] |= 8
    return codes
