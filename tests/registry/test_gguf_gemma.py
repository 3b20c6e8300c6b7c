"""Gemma 4 and Gemma 3n in GGUF files: what llama.cpp's converter makes of them is undone; it reads the files, too."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest

from omlx.engine import blas

blas.prepare()

import mlx.core as mx
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from omlx_registry.gguf.importer import import_gguf
from omlx_registry.gguf.tokenizer import build_tokenizer
from safetensors.numpy import load_file
from tokenizers import Tokenizer, decoders, models, normalizers, trainers

from tests.registry import llama_cpp_peer
from tests.registry.test_gguf_families import logits
from tests.registry.test_gguf_peer import TEXTS, compare
from tests.registry.tiny_gguf import _add_vocabulary
from tests.support import tiny

BASE: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 6,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-6,
    "vocab_size": tiny.VOCABULARY,
    "vocab_size_per_layer_input": tiny.VOCABULARY,
    "max_position_embeddings": 512,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "final_logit_softcapping": 30.0,
    "hidden_size_per_layer_input": 32,
    "num_kv_shared_layers": 2,
}
ROPE = {
    "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}
GEMMA4 = BASE | {"global_head_dim": 64, "rope_parameters": ROPE, "use_double_wide_mlp": True}
# As llama.cpp has it in its code: the kinds of layers and which are sparse, the width of their inputs and the rank.
GEMMA3N: dict[str, Any] = BASE | {
    "model_type": "gemma3n_text",
    "rope_local_base_freq": 10000.0,
    "rope_theta": 1e6,
    "num_kv_shared_layers": 0,
    "layer_types": ["sliding_attention"] * 4 + ["full_attention", "sliding_attention"],
    "activation_sparsity_pattern": [0.95] * 6,
    "altup_num_inputs": 4,
    "altup_coef_clip": 120.0,
    "altup_correct_scale": True,
    "altup_active_idx": 0,
    "laurel_rank": 64,
    "hidden_size_per_layer_input": 256,
}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma4": ("gemma4_text", GEMMA4),
    # As the 26B: experts beside the dense layers, keys that are values, no inputs for each layer.
    "gemma4-experts": (
        "gemma4_text",
        GEMMA4
        | {
            "hidden_size_per_layer_input": 0,
            "num_kv_shared_layers": 0,
            "use_double_wide_mlp": False,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "enable_moe_block": True,
            "num_experts": 4,
            "top_k_experts": 2,
            "moe_intermediate_size": 64,
        },
    ),
    "gemma3n": ("gemma3n", {"text_config": GEMMA3N}),
    "gemma3n-shared": (
        "gemma3n",
        {
            "text_config": GEMMA3N
            | {
                "num_kv_shared_layers": 2,
                "layer_types": BASE["layer_types"],
                "activation_sparsity_pattern": [0.95] * 3 + [0.0] * 3,
                "hidden_size_per_layer_input": 32,
                "laurel_rank": 32,
            }
        },
    ),
}
NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "post_feedforward_layernorm_2": "post_ffw_norm_2",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
    "router.proj": "ffn_gate_inp",
    "experts.switch_glu.gate_proj": "ffn_gate_exps",
    "experts.switch_glu.up_proj": "ffn_up_exps",
    "experts.switch_glu.down_proj": "ffn_down_exps",
    "altup.correction_coefs": "altup_correct_coef",
    "altup.prediction_coefs": "altup_predict_coef",
    "altup.modality_router": "altup_router",
    "altup.router_norm": "altup_router_norm",
    "laurel.linear_left": "laurel_l",
    "laurel.linear_right": "laurel_r",
    "laurel.post_laurel_norm": "laurel_post_norm",
}
WHOLE = {
    "layer_scalar": "layer_output_scale.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "altup.correct_output_scale": "altup_correct_scale.weight",
}
TOP = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "embed_tokens_per_layer": "per_layer_token_embd",
    "per_layer_model_projection": "per_layer_model_proj",
    "per_layer_projection_norm": "per_layer_proj_norm",
}


def make(folder: Path, kind: str, *, type_: str = "F32", fused: bool = False) -> tuple[Path, Path]:
    """The MLX folder and the GGUF file. `fused`: gate and up of the experts in one tensor."""
    architecture, config = KINDS[kind]
    mlx, path = folder / "mlx", folder / f"{kind}.gguf"
    tiny.make(mlx, architecture, config, taught=False)
    writer = GGUFWriter(path, kind.partition("-")[0])
    _add_keys(writer, kind, config.get("text_config", config))
    _add_vocabulary(writer, mlx, "gpt-2")
    for name, values in _to_ggml(load_file(mlx / "model.safetensors"), fused=fused).items():
        small = values.ndim < 2 or any(it in name for it in ("altup", "_inp.", "per_layer_model"))
        stored = GGMLQuantizationType["F32" if small else type_]
        writer.add_tensor(name, quantize(np.ascontiguousarray(values), stored), raw_dtype=stored)
    if not kind.startswith("gemma3n"):
        writer.add_tensor("rope_freqs.weight", np.array([1.0] * 8 + [1e30] * 24, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return mlx, path


def _add_keys(writer: GGUFWriter, kind: str, config: dict[str, Any]) -> None:
    layers, shared = config["num_hidden_layers"], config["num_kv_shared_layers"]
    slides = [it == "sliding_attention" for it in config["layer_types"]]
    writer.add_context_length(512)
    writer.add_embedding_length(64)
    writer.add_block_count(layers)
    writer.add_head_count(4)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_sliding_window(8)
    writer.add_sliding_window_pattern(slides)
    writer.add_shared_kv_layers(shared)
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])
    writer.add_final_logit_softcapping(30.0)
    if kind.startswith("gemma3n"):
        writer.add_feed_forward_length([96] * layers)
        writer.add_head_count_kv(2)
        writer.add_key_length(32)
        writer.add_value_length(32)
        writer.add_altup_active_idx(0)
        writer.add_altup_num_inputs(4)
        scales = [
            NormalDist().inv_cdf(share) if share else -math.inf for share in config["activation_sparsity_pattern"]
        ]
        writer.add_activation_sparsity_scale(scales)
        return
    writer.add_key_length(64)
    writer.add_value_length(64)
    writer.add_key_length_swa(32)
    writer.add_value_length_swa(32)
    writer.add_rope_dimension_count(64)
    writer.add_rope_dimension_count_swa(32)
    writer.add_rope_freq_base_swa(10000.0)
    full = config.get("num_global_key_value_heads") or 2
    writer.add_head_count_kv([2 if slide else full for slide in slides])
    double = config["use_double_wide_mlp"]
    writer.add_feed_forward_length([192 if double and layer >= layers - shared else 96 for layer in range(layers)])
    if config.get("enable_moe_block"):
        writer.add_expert_count(4)
        writer.add_expert_used_count(2)
        writer.add_expert_feed_forward_length(64)


def _to_ggml(tensors: dict[str, np.ndarray], *, fused: bool) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for name, values in tensors.items():
        name = name.removeprefix("model.").removeprefix("language_model.")
        stem, _, leaf = name.rpartition(".")
        if stem in TOP:
            found[f"{TOP[stem]}.{leaf}"] = values
        elif stem.startswith(("altup_projections", "altup_unembed_projections")):
            stack = "altup_proj" if "unembed" not in stem else "altup_unembd_proj"
            found.setdefault(f"{stack}.weight", np.zeros((3, *values.shape), np.float32))[int(stem[-1])] = values
        else:
            _, layer, rest = name.split(".", 2)
            if rest in WHOLE:
                found[f"blk.{layer}.{WHOLE[rest]}"] = values
            else:
                found[f"blk.{layer}.{NAMES[rest.rpartition('.')[0]]}.{leaf}"] = values
    if fused:
        for name in [name for name in found if "ffn_gate_exps" in name]:
            gate, up = found.pop(name), found.pop(name.replace("gate", "up"))
            found[name.replace("gate", "gate_up")] = np.concatenate([gate, up], axis=1)
    return found


def convert(path: Path, folder: Path) -> None:
    import_gguf(path, folder, "keep", lambda done, total: None)


@pytest.mark.parametrize(
    ("kind", "fused"),
    [
        ("gemma4", False),
        ("gemma4-experts", False),
        ("gemma4-experts", True),
        ("gemma3n", False),
        ("gemma3n-shared", False),
    ],
)
def test_import_gives_the_logits_of_the_original(kind: str, fused: bool, tmp_path: Path) -> None:
    original, path = make(tmp_path, kind, fused=fused)
    convert(path, tmp_path / "imported")
    assert mx.allclose(logits(tmp_path / "imported"), logits(original), rtol=1e-4, atol=1e-4).item()


@pytest.mark.parametrize("kind", list(KINDS))
def test_quantized_layers_load(kind: str, tmp_path: Path) -> None:
    original, path = make(tmp_path, kind, type_="Q8_0")
    convert(path, tmp_path / "imported")
    found, wanted = (logits(it).reshape(-1) for it in (tmp_path / "imported", original))
    cosine = (found * wanted).sum() / mx.linalg.norm(found) / mx.linalg.norm(wanted)
    assert cosine.item() > 0.9  # random layers make much of little


@pytest.mark.slow
@pytest.mark.skipif(not llama_cpp_peer.available(), reason="xllamacpp is not there: set OMLX_TEST_PEER")
@pytest.mark.parametrize(
    ("kind", "least", "most"), [("gemma4", 0.95, 0.02), ("gemma4-experts", 0.95, 0.02), ("gemma3n", 0.85, 0.05)]
)
def test_they_agree_with_llama_cpp(kind: str, least: float, most: float, tmp_path: Path) -> None:
    """Gemma 3n cuts activations off at a threshold, which makes more of how each rounds them."""
    _, path = make(tmp_path, kind)
    agreement, difference = compare(path, tmp_path / "out", TEXTS, TEXTS[:4])
    assert agreement > least
    assert difference < most


def test_the_tokenizer_of_gemma_4_is_the_original_one() -> None:
    trained = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    special = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=special, show_progress=False)
    trained.train_from_iterator([text.replace(" ", "▁") for text in TEXTS] * 3, trainer)
    vocabulary = trained.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    kinds = [6 if it.startswith("<0x") else 3 if it in special else 1 for it in tokens]
    merges = json.loads(trained.to_str())["model"]["merges"]
    metadata = {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.merges": [" ".join(merge) for merge in merges],
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.add_bos_token": True,
    }
    ours = Tokenizer.from_str(build_tokenizer(metadata).tokenizer_json)
    for text in TEXTS:
        assert ours.encode(text).ids[1:] == trained.encode(text).ids, text
        assert ours.encode(text).ids[0] == 2
        assert ours.decode(ours.encode(text).ids) == trained.decode(trained.encode(text).ids)
