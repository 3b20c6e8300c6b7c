"""Blocks: MLX weights as the blocks of ggml's tensor types; pure functions over arrays, the inverse of `tensors`.

MLX's affine groups are ggml's blocks of 32 under other names, so codes are kept where a type has room for them:

    kept     2, 3, 4 bits → Q4_1 (Q4_0 where the zero is in the middle)    5 bits → Q5_1 (Q5_0)
             8 bits → Q8_0 where the zero is in the middle                  mxfp4 → MXFP4
    rounded  6 bits, and 8 bits with a zero elsewhere → Q8_0 anew

ggml's scales are float16: those of a bfloat16 model are rounded to it (0.05 %).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from omlx_registry.gguf.container import GgufError
from omlx_registry.gguf.tensors import GROUP, Bytes, Floats
from omlx_registry.weights import Quantization

_ZERO: Final = {"Q4_0": 8, "Q5_0": 16, "Q8_0": 128}
"""The code that stands for zero in the types without a bias."""


def block_type(quantization: Quantization, scales: Floats, biases: Floats | None) -> str:
    """The ggml type for a tensor with these scales and biases. Raises GgufError where there is none."""
    mode, bits = quantization.mode, quantization.bits
    if mode == "mxfp4" and quantization.group_size == GROUP:
        return "MXFP4"
    if mode != "affine" or biases is None or quantization.group_size % GROUP or bits > 8:
        raise GgufError(f"weights quantized as {quantization.text} cannot be written as GGUF")
    for kind, most in (("Q4_0", 4), ("Q5_0", 5), ("Q8_0", 8)):
        if bits == most and np.array_equal(biases, -_ZERO[kind] * scales):
            return kind
    return "Q4_1" if bits <= 4 else "Q5_1" if bits == 5 else "Q8_0"


def is_exact(kind: str, quantization: Quantization, scales: Floats, biases: Floats | None) -> bool:
    """Whether the codes are kept."""
    if kind != "Q8_0":
        return True
    return quantization.bits == 8 and biases is not None and np.array_equal(biases, -128 * scales)


def unpack_codes(words: NDArray[np.uint32], bits: int) -> Bytes:
    """MLX's packed rows [rows, words] → codes [rows, columns]."""
    raw = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return raw
    if bits == 4:
        return np.stack([raw & 0x0F, raw >> 4], axis=-1).reshape(len(raw), -1)
    stream = np.unpackbits(raw, axis=-1, bitorder="little").reshape(len(raw), -1, bits)
    weights = (1 << np.arange(bits, dtype=np.uint8)).astype(np.uint8)
    codes: Bytes = (stream * weights).sum(axis=-1, dtype=np.uint8)
    return codes


def affine_rows(kind: str, quantization: Quantization, words: NDArray[Any], scales: Floats, biases: Floats) -> Bytes:
    """Rows of a quantized tensor as raw rows of the ggml type, uint8 [rows, bytes per row]."""
    codes = unpack_codes(words, quantization.bits)
    repeat = quantization.group_size // GROUP
    scales, biases = np.repeat(scales, repeat, axis=1), np.repeat(biases, repeat, axis=1)
    blocks = codes.reshape(len(codes), -1, GROUP)
    if kind == "Q8_0" and not (quantization.bits == 8 and np.array_equal(biases, -128 * scales)):
        from gguf import GGMLQuantizationType
        from gguf.quants import quantize

        values = blocks.astype(np.float32) * scales[..., None] + biases[..., None]
        rounded: Bytes = quantize(values.reshape(len(codes), -1), GGMLQuantizationType.Q8_0)
        return rounded
    head = [_half(scales)] if kind in _ZERO else [_half(scales), _half(biases)]
    if kind == "Q8_0":
        body: list[Bytes] = [blocks ^ np.uint8(0x80)]
    else:
        low: Bytes = ((blocks[..., :16] & 0x0F) | (blocks[..., 16:] << 4)).astype(np.uint8)
        fifth = [np.packbits(blocks >> 4, axis=-1, bitorder="little")] if kind.startswith("Q5") else []
        body = [*fifth, low]
    return np.concatenate([*head, *body], axis=-1).reshape(len(codes), -1)


def mxfp4_rows(words: NDArray[np.uint32], exponents: Bytes) -> Bytes:
    """Rows of MLX's mxfp4 as raw rows of MXFP4."""
    blocks = unpack_codes(words, 4).reshape(len(words), -1, GROUP)
    packed = (blocks[..., :16] & 0x0F) | (blocks[..., 16:] << 4)
    return np.concatenate([exponents[..., None], packed], axis=-1).reshape(len(words), -1)


def _half(values: Floats) -> Bytes:
    with np.errstate(over="ignore"):
        halves = values.astype(np.float16)
    if not np.isfinite(halves).all():
        raise GgufError("a scale of the weights is beyond what float16 holds: the model cannot be written as GGUF")
    return halves[..., None].view(np.uint8)
