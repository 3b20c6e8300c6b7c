"""How weights are held is said as it is."""

from __future__ import annotations

import pytest

from omlx.engine.weights import Device, choose, held


@pytest.mark.parametrize(
    ("policy", "device", "quantized", "free", "held"),
    [
        ("quantized", "cpu", True, 10**12, "quantized"),
        ("quantized", "cuda", True, 10**12, "quantized"),
        ("quantized", "cpu", False, 10**12, "float32"),
        ("quantized", "cuda", False, 10**12, "as stored"),
        ("auto", "metal", True, 10**12, "quantized"),
        ("auto", "metal", False, 10**12, "as stored"),
        ("auto", "cpu", True, 10**12, "float32"),
        ("auto", "cpu", True, 10, "quantized"),  # there is no memory for more
        ("dequantized", "cuda", True, 10**12, "bfloat16"),
        ("bfloat16", "cpu", True, 10**12, "bfloat16"),
    ],
)
def test_weights_are_shown_as_they_are_held(policy: str, device: Device, quantized: bool, free: int, held: str) -> None:
    plan = choose(policy, device=device, quantized=quantized, parameters=10**6, free_bytes=free)
    assert plan.text.partition(" (")[0] == held


def test_how_weights_are_held_does_not_depend_on_the_memory_that_was_free() -> None:
    texts = [
        choose("auto", device="cpu", quantized=True, parameters=10**9, free_bytes=free).text for free in (10, 10**6)
    ]
    assert texts[0] != texts[1]
    assert [held(text) for text in texts] == ["quantized", "quantized"]
    assert held("float32 (dequantized: a CPU multiplies float32 fastest), rank 0 of 2") == "float32, rank 0 of 2"
