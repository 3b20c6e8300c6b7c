"""Quantizing: everybody's names mean something, the result is what the recipe says, and mlx-lm opens it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx.engine import blas

blas.prepare()

import mlx.core as mx
import mlx_lm
from mlx.utils import tree_flatten
from omlx_registry import mxfp4
from omlx_registry.errors import CreateError, InvalidModel
from omlx_registry.quantize import NAMES, find_recipe, recipe, require_unquantized
from omlx_registry.quantize_model import quantize_model
from omlx_registry.weights import Quantization

from tests.registry.tiny_gguf import BASE
from tests.support import tiny

MEANINGS = {
    "q4_0": (4, 64, "affine", 0), "q4_K_S": (4, 64, "affine", 0), "q4_K_M": (4, 64, "affine", 6),
    "Q4_K": (4, 64, "affine", 6), "q5_K_M": (5, 64, "affine", 6), "q6_K": (6, 64, "affine", 0),
    "Q8_0": (8, 64, "affine", 0), "4bit": (4, 64, "affine", 0), "8bit": (8, 64, "affine", 0),
    "int4": (4, 64, "affine", 0), "INT8": (8, 64, "affine", 0), "q4": (4, 64, "affine", 0),
    "mixed_4_6": (4, 64, "affine", 6), "mixed_3_4": (3, 64, "affine", 4), "mxfp4": (4, 32, "mxfp4", 0),
    "MXFP8": (8, 32, "mxfp8", 0), "nvfp4": (4, 16, "nvfp4", 0), "q2_K": (2, 64, "affine", 6),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(MEANINGS))
def test_names_of_three_traditions_are_understood(name: str) -> None:
    bits, group, mode, high = MEANINGS[name]
    found = recipe(name)
    assert (found.quantization, found.high_bits) == (Quantization(group, bits, mode), high)


@pytest.mark.parametrize(
    ("name", "dtype"), [("f16", "float16"), ("BF16", "bfloat16"), ("F32", "float32"), ("fp16", "float16")]
)
def test_plain_types_only_change_the_type(name: str, dtype: str) -> None:
    assert (recipe(name).quantization, recipe(name).dtype) == (None, dtype)


@given(name=st.sampled_from(NAMES), data=st.data())
def test_letter_case_and_dashes_do_not_matter(name: str, data: Any) -> None:
    spelled = "".join(data.draw(st.sampled_from([c.lower(), c.upper()])) for c in name)
    assert find_recipe(spelled.replace("_", "-")) == find_recipe(name) is not None


@given(st.text(max_size=12))
def test_any_other_name_is_ollamas_error(name: str) -> None:
    if find_recipe(name) is not None:
        return
    with pytest.raises(CreateError, match="unsupported quantization type ") as caught:
        recipe(name)
    assert caught.value.status == 500
    assert str(caught.value).partition(" - supported types are ")[2].split(", ") == [
        "F32", "F16", "BF16", "Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_0", "Q4_1", "Q4_K_S", "Q4_K_M", "Q5_0", "Q5_1",
        "Q5_K_S", "Q5_K_M", "Q6_K", "Q8_0", "2bit", "3bit", "4bit", "5bit", "6bit", "8bit", "int4", "int8",
        "mixed_2_6", "mixed_3_4", "mixed_3_6", "mixed_4_6", "mxfp4", "mxfp8", "nvfp4",
    ]  # fmt: skip


@pytest.mark.parametrize("level", ["Q4_K_M", "Q8_0", "int4", "mxfp4", ""])
def test_only_full_precision_is_quantized(level: str) -> None:
    with pytest.raises(CreateError, match=r"^quantization is only supported for F16, BF16 and F32 models$"):
        require_unquantized(level)
    for fine in ("F16", "bf16", "F32"):
        require_unquantized(fine)


def test_a_mixed_recipe_spends_bits_where_they_matter() -> None:
    mixed = recipe("q4_K_M")

    def bits(path: str, *, tied: bool = False) -> int:
        found = mixed.for_module(path, 1024, layers=32, tied=tied)
        assert found is not None
        return found.bits

    assert [bits(f"model.layers.{layer}.mlp.down_proj") for layer in (0, 3, 4, 5, 6, 28, 31)] == [6, 6, 4, 4, 6, 6, 6]
    assert bits("model.layers.0.self_attn.v_proj") == 6
    assert bits("model.layers.0.self_attn.q_proj") == 4
    assert bits("lm_head") == 6
    assert [bits("model.embed_tokens"), bits("model.embed_tokens", tied=True)] == [4, 6]


@pytest.mark.parametrize(
    ("name", "columns", "expected"),
    [
        ("q4_0", 128, Quantization(64, 4)),
        ("q4_0", 96, Quantization(32, 4)),
        ("q4_0", 48, None),
        ("mxfp4", 48, None),
        ("nvfp4", 48, Quantization(16, 4, "nvfp4")),
        ("f16", 128, None),
    ],
)
def test_rows_that_do_not_divide_take_smaller_groups_or_stay(
    name: str, columns: int, expected: Quantization | None
) -> None:
    assert recipe(name).for_module("model.layers.0.mlp.up_proj", columns, layers=2, tied=False) == expected


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("full")
    config = BASE | {"head_dim": 32, "tie_word_embeddings": False, "num_hidden_layers": 8}
    tiny.make(folder, "qwen3", config, taught=False)
    (folder / "pytorch_model.bin").write_bytes(b"x")
    (folder / "modeling.py").write_text("raise SystemExit")
    return folder


def run(source: Path, folder: Path, name: str, **options: Any) -> tuple[dict[str, Any], list[tuple[str, int, int]]]:
    seen: list[tuple[str, int, int]] = []
    result = quantize_model(
        source, folder, name, lambda status, done, total: seen.append((status, done, total)), **options
    )
    return result, seen


@pytest.mark.parametrize("name", ["Q4_K_M", "q8_0", "5bit", "mxfp4", "mxfp8", "nvfp4", "mixed_2_6"])
def test_the_result_opens_in_mlx_lm_with_the_recipes_widths(name: str, full: Path, tmp_path: Path) -> None:
    result, seen = run(full, tmp_path, name)
    chosen = recipe(name)
    assert result["quantization_level"] == chosen.label
    assert {status for status, _, _ in seen} == {f"quantizing F32 model to {chosen.label}"}
    assert seen[0][1] == 0
    assert seen[-1][1] == seen[-1][2] == (full / "model.safetensors").stat().st_size
    assert sorted(os.listdir(tmp_path)) == result["files"]
    assert "pytorch_model.bin" not in result["files"]
    assert "modeling.py" not in result["files"]

    model, tokenizer = mlx_lm.load(str(tmp_path))
    assert tokenizer.eos_token_ids
    widths = {path: (m.bits, m.group_size, m.mode) for path, m in model.named_modules() if hasattr(m, "bits")}
    assert len(widths) == 8 * 7 + 2
    for path, width in widths.items():
        expected = chosen.for_module(path, 64 * 2, layers=8, tied=False)
        assert expected is not None
        assert width == (expected.bits, expected.group_size, expected.mode), path
    assert mx.isfinite(model(mx.array([[1, 2, 3]]))).all().item()


def test_the_weights_are_those_mlx_would_make(full: Path, tmp_path: Path) -> None:
    run(full, tmp_path, "4bit")
    name = "model.layers.3.self_attn.q_proj"
    original = mx.load(str(full / "model.safetensors"))[f"{name}.weight"]
    ours = mx.load(str(tmp_path / "model.safetensors"))
    codes, scales, biases = mx.quantize(original, group_size=64, bits=4)
    assert mx.array_equal(ours[f"{name}.weight"], codes).item()
    assert mx.array_equal(ours[f"{name}.scales"], scales.astype(mx.bfloat16)).item()
    assert mx.array_equal(ours[f"{name}.biases"], biases.astype(mx.bfloat16)).item()


@pytest.mark.parametrize(("name", "dtype"), [("f16", mx.float16), ("bf16", mx.bfloat16), ("f32", mx.float32)])
def test_a_plain_type_converts_without_quantizing(name: str, dtype: Any, full: Path, tmp_path: Path) -> None:
    run(full, tmp_path, name)
    weights = mx.load(str(tmp_path / "model.safetensors"))
    assert {array.dtype for array in weights.values()} == {dtype}
    config = json.loads((tmp_path / "config.json").read_text())
    assert "quantization" not in config
    assert config["torch_dtype"] == str(dtype).removeprefix("mlx.core.")
    mlx_lm.load(str(tmp_path))


def test_a_large_model_goes_shard_by_shard(full: Path, tmp_path: Path) -> None:
    result, _ = run(full, tmp_path, "q8_0", max_shard_bytes=100_000)
    assert len([name for name in result["files"] if name.startswith("model-0")]) > 3
    assert "model.safetensors.index.json" in result["files"]
    mlx_lm.load(str(tmp_path))


def test_a_models_own_wish_for_its_router_is_honoured(tmp_path: Path) -> None:
    result, _ = run(tiny.tiny_model("qwen3_moe"), tmp_path, "q4_0")
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["quantization"]["model.layers.0.mlp.gate"]["bits"] == 8
    assert config["quantization"]["bits"] == 4
    model, _ = mlx_lm.load(str(tmp_path))
    assert dict(tree_flatten(model.parameters()))["model.layers.0.mlp.switch_mlp.up_proj.weight"].dtype == mx.uint32
    assert result["source_level"] == "F32"


def test_a_quantized_model_is_not_quantized_again(full: Path, tmp_path: Path) -> None:
    run(full, tmp_path / "once", "q8_0")
    with pytest.raises(CreateError, match=r"^quantization is only supported for F16, BF16 and F32 models$"):
        run(tmp_path / "once", tmp_path / "twice", "q4_0")


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (None, "has no readable config.json"),
        ("{", "config.json is no JSON object"),
        ("[]", "config.json is no JSON object"),
        (
            '{"model_type": "martian"}',
            "type 'martian' could not be opened for quantizing: Model type martian not supported",
        ),
    ],
)
def test_a_folder_that_is_no_model_is_named(config: str | None, sentence: str, full: Path, tmp_path: Path) -> None:
    if config is not None:
        shutil.copy(full / "model.safetensors", tmp_path)
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(InvalidModel, match=sentence):
        run(tmp_path, tmp_path / "out", "q4_0")


MEMORY = """
import resource, sys
from pathlib import Path
from omlx_registry.quantize_model import quantize_model
import mlx_lm.utils
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
quantize_model(Path(sys.argv[1]), Path(sys.argv[2]), "f16", lambda *a: None)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def test_memory_holds_a_module_not_a_model(tmp_path: Path) -> None:
    config = BASE | {"head_dim": 64, "tie_word_embeddings": True, "hidden_size": 1024, "intermediate_size": 2048}
    tiny.make(tmp_path / "wide", "qwen3", config | {"num_hidden_layers": 12}, taught=False)
    size = (tmp_path / "wide" / "model.safetensors").stat().st_size
    assert size > 300 << 20
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "wide"), str(tmp_path / "out")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    assert int(done.stdout) < size / 2


def test_mxfp4_is_what_mlx_makes_of_it() -> None:
    rng = np.random.default_rng(0)
    values = (rng.normal(size=(4, 16, 256)) * np.exp(3 * rng.normal(size=(4, 16, 1)))).astype(np.float32)
    values[0, 0, :32] = 0
    values[0, 1, :32] = 1e-30
    values[0, 2, :32] = 6
    ours = mxfp4.quantize(values)
    theirs = mx.quantize(mx.array(values), group_size=32, bits=4, mode="mxfp4")
    np.testing.assert_array_equal(ours[1], np.array(theirs[1]))
    np.testing.assert_array_equal(ours[0], np.array(theirs[0]))


def test_mxfp4_takes_the_nearest_of_values_half_way() -> None:
    half_way = np.resize(np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6, -0.25, -5], np.float32), (1, 32))
    weights, scales = mxfp4.quantize(half_way)
    values = mx.dequantize(mx.array(weights), mx.array(scales), group_size=32, bits=4, mode="mxfp4", dtype=mx.float32)
    assert np.abs(np.array(values) - half_way).max() == 1.0
    np.testing.assert_allclose(np.abs(np.array(values) - half_way)[0, :8], [0.25, 0.25, 0.25, 0.25, 0.5, 0.5, 1, 0])
