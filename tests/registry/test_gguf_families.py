"""Every supported family: a GGUF file computes what the MLX model it was written from computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from omlx.engine import blas

blas.prepare()

import mlx.core as mx
import mlx_lm
from omlx_registry.gguf.container import GgufError, GgufFile
from omlx_registry.gguf.importer import import_gguf
from omlx_registry.gguf.models import plan_model

from tests.registry.tiny_gguf import FAMILIES, make_pair

PROMPT = "Once upon a time there was a model that knew everything by heart."


def convert(path: Path, folder: Path, weights: str = "keep") -> dict[str, Any]:
    return import_gguf(path, folder, weights, lambda done, total: None)


def logits(folder: Path) -> mx.array:
    model, tokenizer = mlx_lm.load(str(folder))
    return model(mx.array([tokenizer.encode(PROMPT)])).astype(mx.float32)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_import_gives_the_logits_of_the_original(family: str, tmp_path: Path) -> None:
    original, path = make_pair(tmp_path, family)
    convert(path, tmp_path / "imported")
    assert mx.allclose(logits(tmp_path / "imported"), logits(original), rtol=1e-4, atol=1e-4).item()


def test_experts_in_mxfp4_stay_mxfp4(tmp_path: Path) -> None:
    _, path = make_pair(tmp_path, "gpt-oss", lambda name: "MXFP4" if name.endswith("exps.weight") else "Q8_0")
    convert(path, tmp_path / "imported")
    convert(path, tmp_path / "dense", "float32")
    config = json.loads((tmp_path / "imported" / "config.json").read_text())
    experts = {"group_size": 32, "bits": 4, "mode": "mxfp4"}
    assert config["quantization"]["model.layers.1.mlp.experts.down_proj"] == experts
    assert (config["quantization"]["bits"], config["quantization"]["mode"]) == (8, "affine")
    size = (tmp_path / "imported" / "model.safetensors").stat().st_size
    assert size < 1.1 * path.stat().st_size
    ours, dense = (mx.load(str(tmp_path / name / "model.safetensors")) for name in ("imported", "dense"))
    for part in ("gate", "up", "down"):
        path_of = f"model.layers.1.mlp.experts.{part}_proj"
        packed = ours[f"{path_of}.weight"], ours[f"{path_of}.scales"]
        values = mx.dequantize(*packed, group_size=32, bits=4, mode="mxfp4", dtype=mx.float32)
        assert mx.array_equal(values, dense[f"{path_of}.weight"]).item()
    assert mx.isfinite(logits(tmp_path / "imported")).all().item()


def test_deepseek_v2_without_scaled_positions_loads(tmp_path: Path) -> None:
    """mlx-lm's network of it cannot be built without a scaling: one that changes nothing stands for none."""
    neutral = {"type": "yarn", "factor": 1.0, "original_max_position_embeddings": 4096}
    original, path = make_pair(tmp_path, "deepseek2", metadata={}, rope_scaling=neutral)
    convert(path, tmp_path / "imported")
    assert mx.allclose(logits(tmp_path / "imported"), logits(original), rtol=1e-4, atol=1e-4).item()


@pytest.mark.parametrize("family", ["deepseek2", "deepseek3"])
def test_the_latent_may_be_quantized(family: str, tmp_path: Path) -> None:
    _, path = make_pair(tmp_path, family, lambda name: "Q8_0")
    convert(path, tmp_path / "imported")
    convert(path, tmp_path / "dense", "float32")
    config = json.loads((tmp_path / "imported" / "config.json").read_text())
    assert config["quantization"]["bits"] == 8
    ours, dense = (mx.load(str(tmp_path / name / "model.safetensors")) for name in ("imported", "dense"))
    paths = ["kv_b_proj"] if family == "deepseek2" else ["embed_q", "unembed_out"]
    for path_of in (f"model.layers.1.self_attn.{it}" for it in paths):
        packed = (ours[f"{path_of}.{leaf}"] for leaf in ("weight", "scales", "biases"))
        values, wanted = mx.dequantize(*packed, group_size=32, bits=8).astype(mx.float32), dense[f"{path_of}.weight"]
        assert mx.max(mx.abs(values - wanted)).item() < 0.02 * mx.max(mx.abs(wanted)).item()
    assert mx.isfinite(logits(tmp_path / "imported")).all().item()


def test_deepseek_v2_with_projections_apart_is_refused(tmp_path: Path) -> None:
    _, path = make_pair(tmp_path, "deepseek3")
    with GgufFile(path) as file:
        metadata = file.metadata | {"deepseek2.expert_gating_func": 1}
        with pytest.raises(GgufError, match="keep attn_k_b and attn_v_b apart cannot be imported: use an older file"):
            plan_model(metadata, file.tensors, lambda name: None, [0])
