"""Tensor formats: MLX's weights of a GGUF block are the block's own values."""

from __future__ import annotations

import numpy as np
import pytest

from omlx.engine import blas

blas.prepare()

import mlx.core as mx
from gguf import GGMLQuantizationType
from gguf.quants import dequantize as reference
from omlx_registry.gguf.container import TENSOR_TYPES
from omlx_registry.gguf.tensors import (
    ANEW,
    KEPT_BITS,
    dequantize,
    kept_quantization,
    mxfp4,
    pack,
    to_dtype,
    unpack,
)

from tests.registry.tiny_gguf import random_blocks

BLOCK_BYTES = {name: size for name, _, size in TENSOR_TYPES.values()}


@pytest.mark.parametrize("kind", sorted(KEPT_BITS))
def test_kept_codes_are_worth_what_ggml_says(kind: str) -> None:
    rows = random_blocks(kind, rows=5, columns=512)
    codes, scales, biases = unpack(kind, rows, BLOCK_BYTES[kind])
    values = codes.reshape(5, -1, 32) * scales[..., None] + biases[..., None]
    np.testing.assert_allclose(values.reshape(5, -1), reference(rows, GGMLQuantizationType[kind]), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", sorted(KEPT_BITS))
def test_mlx_reads_the_packed_codes(kind: str) -> None:
    rows, bits = random_blocks(kind, rows=3, columns=512), KEPT_BITS[kind]
    codes, scales, biases = unpack(kind, rows, BLOCK_BYTES[kind])
    weights = mx.dequantize(mx.array(pack(codes, bits)), mx.array(scales), mx.array(biases), group_size=32, bits=bits)
    np.testing.assert_allclose(np.array(weights), reference(rows, GGMLQuantizationType[kind]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_half_precision_scales_lose_nothing(kind: str) -> None:
    _, scales, biases = unpack(kind, random_blocks(kind, rows=4, columns=256), BLOCK_BYTES[kind])
    assert (to_dtype(scales, "float16").astype(np.float32) == scales).all()
    assert (to_dtype(biases, "float16").astype(np.float32) == biases).all()


def test_mxfp4_stays_what_it_is() -> None:
    rows = random_blocks("MXFP4", rows=5, columns=512)
    weights, scales = mxfp4("MXFP4", rows)
    values = mx.dequantize(mx.array(weights), mx.array(scales), group_size=32, bits=4, mode="mxfp4", dtype=mx.float32)
    np.testing.assert_array_equal(np.array(values), reference(rows, GGMLQuantizationType.MXFP4))
    assert weights.nbytes + scales.nbytes == rows.nbytes


_MOST_ADDED = {
    "IQ1_S": 0.3, "IQ1_M": 0.2, "IQ2_XXS": 0.22, "IQ2_XS": 0.13, "IQ2_S": 0.12, "Q2_K": 0.12, "IQ3_XXS": 0.12,
    "IQ3_S": 0.1, "Q3_K": 0.1, "IQ4_XS": 0.045, "IQ4_NL": 0.035, "Q6_K": 0.005,
}  # fmt: skip
"""Relative root mean square error that quantizing anew may add."""


@pytest.mark.parametrize("kind", sorted(ANEW))
def test_quantizing_anew_stays_close_and_does_not_double_the_size(kind: str) -> None:
    rows, chosen = random_blocks(kind, rows=8, columns=512), ANEW[kind]
    values = dequantize(kind, rows)
    assert np.isfinite(values).all()
    parts = mx.quantize(mx.array(values), group_size=chosen.group_size, bits=chosen.bits)
    again = np.array(mx.dequantize(*parts, group_size=chosen.group_size, bits=chosen.bits))
    error = np.sqrt(np.mean((again - values) ** 2) / np.mean(values**2))
    assert error < _MOST_ADDED[kind]
    stored = chosen.bits + 32 / chosen.group_size
    assert stored * values.size / 8 < 2 * rows.nbytes


GROWTH = {
    "Q4_0": 1.11, "Q4_1": 1.0, "Q5_0": 1.09, "Q5_1": 1.0, "Q8_0": 1.06, "Q4_K": 1.11, "Q5_K": 1.09, "MXFP4": 1.0,
    "MXFP4_OLLAMA": 1.0, "TQ1_0": 1.78, "TQ2_0": 1.45, "Q2_K": 1.71, "Q3_K": 1.31, "Q6_K": 1.37, "IQ1_S": 1.6,
    "IQ1_M": 1.86, "IQ2_XXS": 1.7, "IQ2_XS": 1.84, "IQ2_S": 1.76, "IQ3_XXS": 1.47, "IQ3_S": 1.45, "IQ4_XS": 1.29,
    "IQ4_NL": 1.33,
}  # fmt: skip
"""The size of a tensor here to that in the file, by its type."""


def test_how_much_larger_a_tensor_gets() -> None:
    found = {}
    for name, block, size in TENSOR_TYPES.values():
        stored = kept_quantization(name)
        if stored is not None:
            scales = 32 if stored.mode == "affine" else 8
            found[name] = round((stored.bits + scales / stored.group_size) / (size * 8 / block), 2)
    assert found == GROWTH
    assert max(found.values()) < 2


def test_every_type_of_the_table_can_be_read() -> None:
    for name, _, _ in TENSOR_TYPES.values():
        assert dequantize(name, random_blocks(name, rows=2, columns=256)).shape == (2, 256)


def test_bfloat16_rounds_as_mlx_does() -> None:
    values = np.random.default_rng(0).normal(size=1000).astype(np.float32) * 1e3
    assert (to_dtype(values, "bfloat16") == np.array(mx.array(values).astype(mx.bfloat16).view(mx.uint16))).all()


def test_what_float16_cannot_hold_becomes_its_largest_number() -> None:
    assert to_dtype(np.array([1e6, -1e6], np.float32), "float16").tolist() == [65504, -65504]
