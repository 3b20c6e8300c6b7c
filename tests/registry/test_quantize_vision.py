"""Quantizing a vision model: the language half gets the recipe, what sees stays exact, and mlx-vlm opens the result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from omlx.engine import blas

blas.prepare()

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_vlm.models import qwen2_vl
from mlx_vlm.utils import load_model
from omlx_registry.quantize_model import quantize_model

TEXT: dict[str, Any] = {
    "model_type": "qwen2_vl",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "vocab_size": 320,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
}
VISION: dict[str, Any] = {
    "model_type": "qwen2_vl",
    "depth": 1,
    "embed_dim": 64,
    "hidden_size": 64,
    "num_heads": 4,
    "mlp_ratio": 2.0,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "in_channels": 3,
}


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seeing")
    config = TEXT | {"image_token_id": 5, "video_token_id": 6, "vision_config": VISION}
    (folder / "config.json").write_text(json.dumps(config))
    # As mlx-vlm does when it loads: the halves are set after the whole, which keeps them as plain dictionaries.
    whole = qwen2_vl.ModelConfig.from_dict(config)
    whole.text_config = qwen2_vl.TextConfig.from_dict(TEXT)
    whole.vision_config = qwen2_vl.VisionConfig.from_dict(VISION)
    model = qwen2_vl.Model(whole)
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    return folder


def test_only_the_language_half_is_quantized(seeing: Path, tmp_path: Path) -> None:
    result = quantize_model(seeing, tmp_path, "q4_K_M", lambda status, done, total: None)
    assert result["quantization_level"] == "Q4_K_M"
    before = dict(tree_flatten(load_model(seeing).parameters()))
    after = dict(tree_flatten(load_model(tmp_path).parameters()))
    assert after["language_model.model.layers.0.self_attn.q_proj.weight"].dtype == mx.uint32
    vision = [name for name in before if name.startswith("vision_tower")]
    assert vision
    for name in vision:
        assert mx.array_equal(after[name], before[name].astype(mx.bfloat16)).item(), name
