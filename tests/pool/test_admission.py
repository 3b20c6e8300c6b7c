"""What a model will take is known roughly before it is loaded; what cannot fit is refused with numbers."""

from __future__ import annotations

import pytest

from omlx.messages.context import effective_context
from omlx.messages.load_spec import RUNNER_OVERHEAD
from omlx.pool.admission import (
    GIB,
    Machine,
    bits_per_weight,
    default_contexts,
    estimate,
    hot_bytes,
    kv_bytes_per_token,
    parse_cap,
    refusal,
)

CPU = Machine(ram=64 * GIB, available=32 * GIB)
LLAMA_8B = {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}
FOUR_BIT = {**LLAMA_8B, "quantization": {"bits": 4, "group_size": 64}}


def gpu(gib: int) -> Machine:
    return Machine(ram=64 * GIB, available=32 * GIB, device="cuda", device_memory=gib * GIB)


@pytest.mark.parametrize(
    ("machine", "contexts"),
    [
        (CPU, [4096]),
        (gpu(16), [4096]),
        (gpu(23), [32768, 4096]),
        (gpu(46), [32768, 4096]),
        (gpu(47), [262144, 32768, 4096]),
    ],
)
def test_the_default_context_follows_the_gpus_memory_as_in_ollama(machine: Machine, contexts: list[int]) -> None:
    assert default_contexts(machine) == contexts


def test_a_context_is_at_most_what_the_model_was_trained_for() -> None:
    assert effective_context(8192, 4096, 2048) == 2048
    assert effective_context(8192, 4096, 0) == 8192
    assert effective_context(0, 4096, 0) == effective_context(-1, 4096, 8192) == 4096
    assert effective_context(1, 4096, 2048) == 4


def test_kv_per_token_counts_the_key_value_heads() -> None:
    assert kv_bytes_per_token(LLAMA_8B) == 2 * 32 * 8 * 128 * 2
    assert kv_bytes_per_token({"text_config": LLAMA_8B}) == 2 * 32 * 8 * 128 * 2
    assert kv_bytes_per_token({}) == 0


def test_stored_width_comes_from_the_quantization_or_the_type() -> None:
    assert bits_per_weight(FOUR_BIT) == 4.5
    assert bits_per_weight({"torch_dtype": "float32"}) == 32
    assert bits_per_weight({}) == 16


def test_without_a_gpu_quantized_weights_are_counted_as_float32_but_may_stay_small() -> None:
    size = 4_500_000_000
    found = estimate(size=size, config=FOUR_BIT, context=4096, weights="auto", gpu=False)
    assert found.likely == int(size * 32 / 4.5) + 2 * 32 * 8 * 128 * 4 * 4096 + RUNNER_OVERHEAD
    assert found.least == size + RUNNER_OVERHEAD
    on_gpu = estimate(size=size, config=FOUR_BIT, context=4096, weights="auto", gpu=True)
    assert on_gpu.likely == size + 2 * 32 * 8 * 128 * 2 * 4096 + RUNNER_OVERHEAD
    forced = estimate(size=size, config=FOUR_BIT, context=4096, weights="float32", gpu=True)
    assert forced.least == int(size * 32 / 4.5) + RUNNER_OVERHEAD


def test_caps_are_auto_a_share_or_a_size() -> None:
    assert parse_cap("auto", Machine(ram=64_000_000_000, available=0)) == 56_000_000_000
    assert parse_cap("auto", Machine(ram=8_000_000_000, available=0)) == 4_000_000_000
    assert parse_cap("auto", gpu(100)) == 95 * GIB
    assert parse_cap("50%", CPU) == 32 * GIB
    assert parse_cap("50%", gpu(100)) == 50 * GIB
    assert parse_cap("2GB", CPU) == 2_000_000_000


def test_memory_for_models_is_the_gpus_or_what_is_free_and_what_they_hold() -> None:
    assert CPU.free(held=4 * GIB) == 36 * GIB
    assert gpu(24).free(held=4 * GIB) == 24 * GIB


@pytest.mark.parametrize(("ram", "hot"), [(16, 1_600_000_000), (64, 12_800_000_000), (192, 57_600_000_000)])
def test_defaults_follow_the_machine(ram: int, hot: int) -> None:
    size = ram * 10**9
    assert hot_bytes("auto", size) == hot
    assert hot_bytes("1GB", size) == 10**9
    assert hot_bytes("50%", size) == size // 2


def test_cached_prefixes_take_little_of_a_gpus_own_memory() -> None:
    assert hot_bytes("auto", 192 * 10**9, 80 * 10**9) == 4 * 10**9
    assert hot_bytes("20GB", 192 * 10**9, 80 * 10**9) == 20 * 10**9


def test_a_model_that_cannot_fit_is_refused_in_ollamas_words_and_with_numbers() -> None:
    assert refusal(10 * GIB, available=20 * GIB, cap=20 * GIB, model_cap=None) is None
    assert (
        refusal(40 * GIB, available=20 * GIB, cap=64 * GIB, model_cap=None)
        == "model requires more system memory (40.0 GiB) than is available (20.0 GiB)"
    )
    assert "max_process_memory" in (refusal(40 * GIB, available=64 * GIB, cap=20 * GIB, model_cap=None) or "")
    assert "max_model_memory" in (refusal(40 * GIB, available=64 * GIB, cap=64 * GIB, model_cap=8 * GIB) or "")


def test_small_sizes_are_told_in_mib() -> None:
    said = refusal(400 << 20, available=GIB, cap=38 << 20, model_cap=None)
    assert said == "model requires more system memory (400 MiB) than max_process_memory allows (38 MiB)"
