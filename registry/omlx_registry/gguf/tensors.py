"""Tensor formats: how the blocks of a GGUF tensor become MLX weights; pure functions over bytes, no files.

MLX's affine format stores `value = code * scale + bias` with one scale and one bias per group of 32 weights and codes
of any width from 2 to 8 bits. Many of ggml's formats *are* of that form, so their codes are kept and only rearranged:

    kept exactly     Q4_0 Q4_1 (4 bits)  Q5_0 Q5_1 (5)  Q8_0 (8)  TQ1_0 TQ2_0 (2)
    kept, scale is a product, rounded once to 16 bits (0.05 %)      Q4_K (4)  Q5_K (5)
    quantized anew   the others, whose groups of 16 or tables do not fit (`ANEW`)

MXFP4 is a format of MLX's own, with the same codes and scales: it is kept byte for byte.

What is quantized anew takes the fewest bits that add at most about half of the error the format has itself, and less
than twice its size. Added error (root mean square, relative to the weights) and bits per weight, before and after:

    IQ1_S 0.27, 1.6 → 2.5     IQ2_XS 0.11, 2.3 → 4.25     IQ3_XXS 0.11, 3.1 → 4.5    Q6_K 0.005, 6.6 → 9
    IQ1_M 0.18, 1.8 → 3.25    IQ2_S  0.10, 2.6 → 4.5      IQ3_S   0.09, 3.4 → 5
    IQ2_XXS 0.20, 2.1 → 3.5   Q2_K   0.09, 2.6 → 4.5      Q3_K    0.08, 3.4 → 4.5
                                                          IQ4_XS  0.04, 4.3 → 5.5    IQ4_NL 0.03, 4.5 → 6

(A plain Q2_K of SmolLM2 has 0.33 itself, a plain Q3_K 0.19.)

Keeping costs 2 × 16 bits per group for scale and bias: a Q4_1 file stays its size (5 bits per weight), Q4_0 and Q4_K
grow from 4.5 to 5, Q8_0 from 8.5 to 9; dense float16 would be 16. A loader that dequantizes in float32 (widened first,
then code * scale + bias) gets ggml's own values back for the types of the first line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from omlx_registry.quantize import DType
from omlx_registry.weights import Quantization

SAFETENSORS_DTYPE: Final[dict[DType, str]] = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
GROUP: Final = 32

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Affine = tuple[Bytes, Floats, Floats]  # codes [rows, columns], scales and biases [rows, columns / 32]

KEPT_BITS: Final[dict[str, int]] = {
    "Q4_0": 4, "Q4_1": 4, "Q5_0": 5, "Q5_1": 5, "Q8_0": 8, "Q4_K": 4, "Q5_K": 5, "TQ1_0": 2, "TQ2_0": 2,
}  # fmt: skip
MXFP4: Final = Quantization(GROUP, 4, "mxfp4")
MXFP4_TYPES: Final = ("MXFP4", "MXFP4_OLLAMA")
"""The second has the codes of a block one after the other."""
ANEW: Final[dict[str, Quantization]] = {
    "IQ1_S": Quantization(64, 2),
    "IQ1_M": Quantization(128, 3),
    "IQ2_XXS": Quantization(64, 3),
    "IQ2_XS": Quantization(128, 4),
    "IQ2_S": Quantization(64, 4),
    "Q2_K": Quantization(64, 4),
    "IQ3_XXS": Quantization(64, 4),
    "IQ3_S": Quantization(32, 4),
    "Q3_K": Quantization(64, 4),
    "IQ4_XS": Quantization(64, 5),
    "IQ4_NL": Quantization(32, 5),
    "Q6_K": Quantization(32, 8),
}
DENSE: Final[dict[str, DType]] = {"F32": "float32", "F64": "float32", "F16": "float16", "BF16": "bfloat16"}


def kept_quantization(kind: str) -> Quantization | None:
    """How a tensor of this ggml type is stored when the file's own precision is kept; None means dense."""
    if kind in MXFP4_TYPES:
        return MXFP4
    bits = KEPT_BITS.get(kind)
    return Quantization(GROUP, bits) if bits else ANEW.get(kind)


def keeps_codes(kind: str) -> bool:
    """Its codes are only rearranged."""
    return kind in MXFP4_TYPES or kind in KEPT_BITS


def _half(raw: Bytes) -> Floats:
    """Two bytes per block, shape [rows, blocks, 2] → [rows, blocks] float32."""
    return np.ascontiguousarray(raw).view(np.float16)[..., 0].astype(np.float32)


def _nibbles(raw: Bytes) -> Bytes:
    """[..., 16] bytes → [..., 32] codes: ggml stores the first half in the low nibbles, the second in the high ones."""
    return np.concatenate([raw & 0x0F, raw >> 4], axis=-1)


def _in_order(raw: Bytes) -> Bytes:
    """[..., 16] bytes → [..., 32] codes, two of a byte one after the other."""
    return np.stack([raw & 0x0F, raw >> 4], axis=-1).reshape(*raw.shape[:-1], -1)


def _fifth_bits(raw: Bytes) -> Bytes:
    """[..., 4] bytes → [..., 32] values 0 or 16: one extra bit for each weight of a block, in order."""
    return np.unpackbits(raw, axis=-1, bitorder="little") << np.uint8(4)


def _q4_0(blocks: Bytes) -> Affine:
    d = _half(blocks[..., :2])
    return _nibbles(blocks[..., 2:]), d, -8 * d


def _q4_1(blocks: Bytes) -> Affine:
    return _nibbles(blocks[..., 4:]), _half(blocks[..., :2]), _half(blocks[..., 2:4])


def _q5_0(blocks: Bytes) -> Affine:
    d = _half(blocks[..., :2])
    return _nibbles(blocks[..., 6:]) | _fifth_bits(blocks[..., 2:6]), d, -16 * d


def _q5_1(blocks: Bytes) -> Affine:
    codes = _nibbles(blocks[..., 8:]) | _fifth_bits(blocks[..., 4:8])
    return codes, _half(blocks[..., :2]), _half(blocks[..., 2:4])


def _q8_0(blocks: Bytes) -> Affine:
    d = _half(blocks[..., :2])
    return blocks[..., 2:] ^ np.uint8(0x80), d, -128 * d


def _k_scales(raw: Bytes) -> tuple[Floats, Floats]:
    """Q4_K's and Q5_K's 12 bytes → eight 6-bit scales and eight 6-bit minima, shapes [..., 8]."""
    low, minima, high = raw[..., :4], raw[..., 4:8], raw[..., 8:]
    scale = np.concatenate([low & 0x3F, (high & 0x0F) | ((low >> 2) & 0x30)], axis=-1)
    minimum = np.concatenate([minima & 0x3F, (high >> 4) | ((minima >> 2) & 0x30)], axis=-1)
    return scale.astype(np.float32), minimum.astype(np.float32)


def _k_affine(blocks: Bytes) -> tuple[Floats, Floats]:
    scale, minimum = _k_scales(blocks[..., 4:16])
    return _half(blocks[..., :2])[..., None] * scale, -_half(blocks[..., 2:4])[..., None] * minimum


def _k_nibbles(raw: Bytes) -> Bytes:
    """128 bytes → [..., 8, 32] codes: each run of 32 bytes holds two groups, low nibbles and high nibbles."""
    runs = raw.reshape(*raw.shape[:-1], 4, 1, 32)
    return np.concatenate([runs & 0x0F, runs >> 4], axis=-2).reshape(*raw.shape[:-1], 8, 32)


def _q4_k(blocks: Bytes) -> Affine:
    return _k_nibbles(blocks[..., 16:]), *_k_affine(blocks)


def _q5_k(blocks: Bytes) -> Affine:
    shifts = np.arange(8, dtype=np.uint8)[:, None]
    fifth = ((blocks[..., None, 16:48] >> shifts) & np.uint8(1)) << np.uint8(4)
    return _k_nibbles(blocks[..., 48:]) | fifth, *_k_affine(blocks)


_UNPACK: Final[dict[str, Callable[[Bytes], Affine]]] = {
    "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q8_0": _q8_0, "Q4_K": _q4_k, "Q5_K": _q5_k,
}  # fmt: skip


def unpack(kind: str, rows: Bytes, block_bytes: int) -> Affine:
    """Codes, scales and biases of raw rows [rows, bytes per row] of a kept type (KEPT_BITS)."""
    count = rows.shape[0]
    if kind in ("TQ1_0", "TQ2_0"):
        # Ternary, with the block's scale in its last two bytes; the packing is left to gguf.
        scale = np.repeat(_half(rows.reshape(count, -1, block_bytes)[..., -2:]), 256 // GROUP, axis=1)
        values = dequantize(kind, rows).reshape(count, -1, GROUP)
        codes = (np.rint(values / np.where(scale == 0, 1, scale)[..., None]) + 1).astype(np.uint8)
        return codes.reshape(count, -1), scale, -scale
    codes, scales, biases = _UNPACK[kind](rows.reshape(count, -1, block_bytes))
    return codes.reshape(count, -1), scales.reshape(count, -1), biases.reshape(count, -1)


def mxfp4(kind: str, rows: Bytes) -> tuple[NDArray[np.uint32], Bytes]:
    """Raw rows of MXFP4 as MLX's weights and scales [rows, columns / 32]: an exponent with bias 127, e2m1 codes."""
    blocks = rows.reshape(rows.shape[0], -1, 17)
    codes = (_in_order if kind == "MXFP4_OLLAMA" else _nibbles)(blocks[..., 1:]).reshape(rows.shape[0], -1)
    return pack(codes, MXFP4.bits), np.ascontiguousarray(blocks[..., 0])


def pack(codes: Bytes, bits: int) -> NDArray[np.uint32]:
    """MLX's packing: a row's codes as one little-endian bit stream, cut into 32-bit words."""
    count = codes.shape[0]
    if bits == 8:
        return np.ascontiguousarray(codes).view(np.uint32)
    if bits == 4:
        return np.ascontiguousarray(codes[:, 0::2] | (codes[:, 1::2] << 4)).view(np.uint32)
    eights = codes.reshape(count, -1, 8)
    stream = np.zeros(eights.shape[:2], np.uint64)
    for index in range(8):
        stream |= eights[..., index].astype(np.uint64) << np.uint64(bits * index)
    octets = stream.astype("<u8").view(np.uint8).reshape(count, -1, 8)[..., :bits]
    return np.ascontiguousarray(octets).reshape(count, -1).view(np.uint32)


def dequantize(kind: str, rows: Bytes) -> Floats:
    """The values of raw rows of any ggml type, float32 [rows, columns], by the gguf package's reference code."""
    if kind == "F64":
        return np.ascontiguousarray(rows).view(np.float64).astype(np.float32)
    if kind == "F32":
        return np.ascontiguousarray(rows).view(np.float32)
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize as reference

    if kind == "MXFP4_OLLAMA":
        blocks = rows.reshape(rows.shape[0], -1, 17)
        codes = _in_order(blocks[..., 1:])
        ggml = codes[..., :16] | (codes[..., 16:] << 4)
        kind, rows = "MXFP4", np.concatenate([blocks[..., :1], ggml], axis=-1).reshape(rows.shape)
    values: Floats = reference(np.ascontiguousarray(rows), GGMLQuantizationType[kind])
    return values


def to_dtype(values: Floats, dtype: DType) -> NDArray[Any]:
    """Round float32 to a storage type; bfloat16 comes as its bits (uint16), which NumPy has no type for."""
    if dtype == "float32":
        return values
    if dtype == "float16":
        # Rounding beyond float16's range would make an infinity; its largest number is nearer.
        return np.clip(values, -65504, 65504).astype(np.float16)
    bits = np.ascontiguousarray(values).view(np.uint32)
    # Round to nearest even; the carry cannot overflow a finite number into NaN.
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
