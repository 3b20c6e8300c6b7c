"""Gated linear attention in GGUF files (Qwen3.5, Qwen3-Next): what llama.cpp's converter does to it is undone.

The changes are spelled out here once more and not taken from the importer; llama.cpp reads the files too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from omlx.engine import blas

blas.prepare()

import mlx.core as mx
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from omlx_registry.gguf.importer import import_gguf
from safetensors.numpy import load_file

from tests.registry import llama_cpp_peer
from tests.registry.test_gguf_families import logits
from tests.registry.test_gguf_peer import TEXTS, compare
from tests.registry.tiny_gguf import _add_vocabulary
from tests.support import tiny

KEY_HEADS, HEAD = 2, 32
TEXT: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-6,
    "vocab_size": tiny.VOCABULARY,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "linear_num_key_heads": KEY_HEADS,
    "linear_key_head_dim": HEAD,
    "linear_value_head_dim": HEAD,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "rope_theta": 10000.0,
}
EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 96,
    "decoder_sparse_step": 1,
    "norm_topk_prob": True,
    "mlp_only_layers": [],
}
ROPE = {"rope_parameters": {"type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}
KINDS = {"qwen35": "qwen3_5", "qwen35moe": "qwen3_5_moe", "qwen3next": "qwen3_next"}
NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.in_proj_ba": "ssm_ba",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.switch_mlp.gate_proj": "ffn_gate_exps",
    "mlp.switch_mlp.up_proj": "ffn_up_exps",
    "mlp.switch_mlp.down_proj": "ffn_down_exps",
}


def make(
    folder: Path, arch: str, *, kind: str = "F32", value_heads: int = 4, fused: bool = False, drafts: int = 0
) -> tuple[Path, Path]:
    """The MLX folder and the GGUF file.

    `fused`: gate and up of the experts in one tensor; `drafts`: layers that predict further tokens.
    """
    config = TEXT | {"linear_num_value_heads": value_heads} | (EXPERTS if arch != "qwen35" else {})
    config |= {"partial_rotary_factor": 0.5} if arch == "qwen3next" else ROPE
    mlx, path = folder / "mlx", folder / f"{arch}.gguf"
    tiny.make(mlx, KINDS[arch], config, taught=False)
    writer = GGUFWriter(path, arch)
    writer.add_context_length(512)
    writer.add_embedding_length(64)
    writer.add_block_count(4 + drafts)
    if drafts:
        writer.add_nextn_predict_layers(drafts)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_key_length(32)
    writer.add_value_length(32)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(16)
    writer.add_ssm_conv_kernel(4)
    writer.add_ssm_state_size(HEAD)
    writer.add_ssm_group_count(KEY_HEADS)
    writer.add_ssm_time_step_rank(value_heads)
    writer.add_ssm_inner_size(HEAD * value_heads)
    writer.add_uint32(f"{arch}.full_attention_interval", 4)
    if arch != "qwen3next":
        writer.add_rope_dimension_sections([3, 3, 2, 0])
    if arch != "qwen35":
        writer.add_expert_count(4)
        writer.add_expert_used_count(2)
        writer.add_expert_feed_forward_length(64)
        writer.add_expert_shared_feed_forward_length(96)
    _add_vocabulary(writer, mlx, "qwen35" if arch != "qwen3next" else "qwen2")
    for layer in range(4, 4 + drafts):
        writer.add_tensor(f"blk.{layer}.nextn.enorm.weight", np.ones(64, np.float32))
        writer.add_tensor(f"blk.{layer}.attn_q.weight", np.ones((256, 64), np.float32))
    tensors = load_file(mlx / "model.safetensors")
    for name, values in sorted(tensors.items()):
        for ours, data in _to_ggml(arch, name, values.astype(np.float32), value_heads, tensors, fused=fused):
            small = data.ndim < 2 or "conv1d" in ours or "_inp" in ours
            type_ = GGMLQuantizationType["F32" if small else kind]
            writer.add_tensor(ours, quantize(np.ascontiguousarray(data), type_), raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return mlx, path


def _tiled(values: np.ndarray, heads: int, width: int, axis: int = 0) -> np.ndarray:
    """Value heads: from those of each key head together to the first of each, then the second of each."""
    shape = values.shape
    split = values.reshape(*shape[:axis], KEY_HEADS, heads // KEY_HEADS, width, *shape[axis + 1 :])
    return split.swapaxes(axis, axis + 1).reshape(shape)


def _to_ggml(
    arch: str, name: str, values: np.ndarray, heads: int, tensors: dict[str, np.ndarray], *, fused: bool
) -> list[tuple[str, np.ndarray]]:
    name = name.removeprefix("language_model.")
    stem, _, leaf = name.rpartition(".")
    top = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    if stem in top:
        return [(f"{top[stem]}.{leaf}", values)]
    _, _, layer, rest = stem.split(".", 3)
    at = f"blk.{layer}."
    queries = 2 * KEY_HEADS * HEAD
    tiles = arch != "qwen3next"
    if leaf == "A_log":
        values = -np.exp(values)
        return [(f"{at}ssm_a", _tiled(values, heads, 1) if tiles else values)]
    if leaf == "dt_bias":
        return [(f"{at}ssm_dt.bias", _tiled(values, heads, 1) if tiles else values)]
    if rest == "linear_attn.in_proj_qkvz":
        parts = values.reshape(KEY_HEADS, -1, values.shape[1])
        q, k, v, z = np.split(parts, [HEAD, 2 * HEAD, 2 * HEAD + heads // KEY_HEADS * HEAD], axis=1)
        joined = np.concatenate([it.reshape(-1, values.shape[1]) for it in (q, k, v)])
        return [(f"{at}attn_qkv.weight", joined), (f"{at}attn_gate.weight", z.reshape(-1, values.shape[1]))]
    if rest == "linear_attn.conv1d":
        values = values.squeeze(-1)
    if rest in ("mlp.shared_expert_gate",):
        values = values.squeeze(0)
    if tiles and rest in ("linear_attn.in_proj_qkv", "linear_attn.conv1d"):
        values = np.concatenate([values[:queries], _tiled(values[queries:], heads, HEAD)])
    elif tiles and rest == "linear_attn.in_proj_z":
        values = _tiled(values, heads, HEAD)
    elif tiles and rest in ("linear_attn.in_proj_a", "linear_attn.in_proj_b"):
        values = _tiled(values, heads, 1)
    elif tiles and rest == "linear_attn.out_proj":
        values = _tiled(values, heads, HEAD, axis=1)
    if fused and rest == "mlp.switch_mlp.up_proj":
        return []
    if fused and rest == "mlp.switch_mlp.gate_proj":
        up = next(value for key, value in tensors.items() if key.endswith(name.replace("gate_proj", "up_proj")))
        return [(f"{at}ffn_gate_up_exps.weight", np.concatenate([values, up.astype(np.float32)], axis=1))]
    return [(f"{at}{NAMES[rest]}.{leaf}", values)]


def convert(path: Path, folder: Path, weights: str = "keep") -> None:
    import_gguf(path, folder, weights, lambda done, total: None)


@pytest.mark.parametrize(
    ("arch", "heads", "fused"),
    [
        ("qwen35", 4, False),
        ("qwen35", 2, False),
        ("qwen35moe", 6, False),
        ("qwen35moe", 4, True),
        ("qwen3next", 4, False),
        ("qwen3next", 4, True),
    ],
)
def test_import_gives_the_logits_of_the_original(arch: str, heads: int, fused: bool, tmp_path: Path) -> None:
    original, path = make(tmp_path, arch, value_heads=heads, fused=fused)
    convert(path, tmp_path / "imported")
    assert mx.allclose(logits(tmp_path / "imported"), logits(original), rtol=1e-4, atol=1e-4).item()


def test_layers_that_predict_further_tokens_are_left_out(tmp_path: Path) -> None:
    original, path = make(tmp_path, "qwen35", drafts=1)
    convert(path, tmp_path / "imported")
    assert mx.allclose(logits(tmp_path / "imported"), logits(original), rtol=1e-4, atol=1e-4).item()


@pytest.mark.parametrize("arch", list(KINDS))
def test_codes_are_kept_in_their_new_order(arch: str, tmp_path: Path) -> None:
    _, path = make(tmp_path, arch, kind="Q8_0")
    convert(path, tmp_path / "imported")
    convert(path, tmp_path / "dense", "float32")
    quantization = json.loads((tmp_path / "imported" / "config.json").read_text())["quantization"]
    ours, dense = (mx.load(str(tmp_path / it / "model.safetensors")) for it in ("imported", "dense"))
    packed = [name.removesuffix(".scales") for name in ours if name.endswith(".scales")]
    assert any("linear_attn.out_proj" in name for name in packed)
    for name in packed:
        assert name in quantization or quantization["bits"] == 8
        parts = (ours[f"{name}.{leaf}"] for leaf in ("weight", "scales", "biases"))
        values, wanted = mx.dequantize(*parts, group_size=32, bits=8).astype(mx.float32), dense[f"{name}.weight"]
        assert mx.max(mx.abs(values - wanted)).item() < 0.02 * mx.max(mx.abs(wanted)).item(), name
    assert mx.isfinite(logits(tmp_path / "imported")).all().item()


@pytest.mark.slow
@pytest.mark.skipif(not llama_cpp_peer.available(), reason="xllamacpp is not there: set OMLX_TEST_PEER")
@pytest.mark.parametrize("arch", list(KINDS))
def test_they_agree_with_llama_cpp(arch: str, tmp_path: Path) -> None:
    _, path = make(tmp_path, arch)
    agreement, difference = compare(path, tmp_path / "out", TEXTS, TEXTS[:4])
    assert agreement > 0.95
    assert difference < 0.02
