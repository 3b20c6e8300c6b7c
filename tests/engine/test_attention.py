"""Our own attention of several queries gives what MLX's does."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx.engine.attention import Chooser, columns, padded, size_class, suits, unfused
from tests.support.precision import within

HEADS, GROUPS, LENGTH, SIZE, WIDTH = 6, 2, 5, 9, 16


def tensors(batch: int, dtype: mx.Dtype = mx.float32) -> tuple[mx.array, mx.array, mx.array]:
    mx.random.seed(7)
    shapes = ((batch, HEADS, LENGTH, WIDTH), (batch, GROUPS, SIZE, WIDTH), (batch, GROUPS, SIZE, 2 * WIDTH))
    queries, keys, values = (mx.random.normal(shape).astype(dtype) for shape in shapes)
    return queries, keys, values


def bools(*shape: int) -> mx.array:
    return mx.random.uniform(shape=shape) > 0.4


MASKS: dict[str, Any] = {
    "none": lambda: None,
    "causal": lambda: "causal",
    "of all": lambda: bools(LENGTH, SIZE),
    "of each row": lambda: bools(3, 1, LENGTH, SIZE),
    "of each head": lambda: bools(3, HEADS, LENGTH, SIZE),
    "of keys alone": lambda: bools(3, 1, 1, SIZE),
    "three axes": lambda: bools(HEADS, LENGTH, SIZE),
    "additive": lambda: mx.random.normal((LENGTH, SIZE)),
}


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("with_sinks", [False, True])
def test_same_as_mlx(kind: str, with_sinks: bool) -> None:
    queries, keys, values = tensors(batch=3)
    options = {"scale": 0.3, "mask": MASKS[kind](), "sinks": mx.random.normal((HEADS,)) if with_sinks else None}
    wanted = mx.fast.scaled_dot_product_attention(queries, keys, values, **options)
    found = unfused(queries, keys, values, **options)
    assert found.shape == wanted.shape
    assert mx.allclose(found, wanted, rtol=1e-4, atol=within(1e-5)).item()


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("with_sinks", [False, True])
def test_same_when_padded(kind: str, with_sinks: bool) -> None:
    queries, keys, values = tensors(batch=3)
    options = {"scale": 0.3, "mask": MASKS[kind](), "sinks": mx.random.normal((HEADS,)) if with_sinks else None}
    fused = mx.fast.scaled_dot_product_attention
    wanted = fused(queries, keys, values, **options)
    found = padded(fused, queries, keys, values, **options)
    assert found.shape == wanted.shape
    assert mx.allclose(found, wanted, rtol=1e-4, atol=within(1e-5)).item()


@pytest.mark.parametrize(
    ("rows", "length", "keys", "masked", "dtype", "fused"),
    [
        (16, 1, 300, True, mx.bfloat16, False),
        (16, 1, 4095, True, mx.float16, False),
        (16, 1, 4096, True, mx.bfloat16, True),
        (16, 1, 300, True, mx.float32, True),
        (1, 1, 300, False, mx.bfloat16, True),
        (1, 200, 200, True, mx.bfloat16, False),
    ],
)
def test_the_fused_kernel_is_asked_where_it_is_cheaper(
    rows: int, length: int, keys: int, masked: bool, dtype: mx.Dtype, fused: bool
) -> None:
    asked = []

    def attend(q: mx.array, k: mx.array, v: mx.array, **_: Any) -> mx.array:
        asked.append(q.shape)
        return q

    queries = mx.zeros((rows, HEADS, length, WIDTH), dtype)
    held = mx.zeros((rows, GROUPS, keys, WIDTH), dtype)
    mask = mx.ones((rows, 1, length, keys), mx.bool_) if masked else None
    Chooser(attend)(queries, held, held, scale=0.3, mask=mask)
    assert bool(asked) == fused


@given(st.integers(1, 1 << 20))
def test_sizes_are_few_and_not_much_larger(count: int) -> None:
    size = size_class(count)
    assert count <= size == size_class(size)
    assert size <= max(128, 2 * count) if count <= 2048 else size <= 1.25 * count


@given(st.integers(1, 1 << 20))
def test_a_cache_of_the_wanted_size_suits(end: int) -> None:
    assert columns(end) >= end
    assert suits(columns(end), end)


def test_sixteen_bit_numbers_stay_so() -> None:
    found = unfused(*tensors(batch=1, dtype=mx.bfloat16), scale=0.3, mask="causal")
    assert found.dtype == mx.bfloat16
    wanted = unfused(
        *(each.astype(mx.float32) for each in tensors(batch=1, dtype=mx.bfloat16)), scale=0.3, mask="causal"
    )
    assert mx.allclose(found.astype(mx.float32), wanted, atol=0.03).item()
