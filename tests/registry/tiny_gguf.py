"""Tiny GGUF files: a random MLX model written the way llama.cpp's converter writes its family, for tests of the import.

The names and the layout changes (interleaved q and k, Gemma's norms plus one) are spelled out here once more and on
purpose: an importer tested with its own tables would agree with itself. `llama.cpp` reads these files too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, RopeScalingType
from gguf.quants import quantize
from omlx_registry.gguf.container import TENSOR_TYPES
from safetensors.numpy import load_file

from tests.registry import kquants
from tests.registry import tiny_gguf_families as more
from tests.registry.tiny_gguf_families import BASE
from tests.support import tiny

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = more.FAMILIES | {
    "llama": ("llama", BASE | {"head_dim": 16, "tie_word_embeddings": True}),
    # Mistral Nemo is a llama whose heads are wider than hidden size / heads, with an output layer of its own.
    "mistral": ("llama", BASE | {"head_dim": 32, "tie_word_embeddings": False, "rope_theta": 1e6}),
    "llama3": (
        "llama",
        BASE
        | {
            "head_dim": 32,
            "tie_word_embeddings": True,
            "rope_theta": 500000.0,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
        },
    ),
    "qwen2": ("qwen2", BASE | {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", BASE | {"head_dim": 32, "tie_word_embeddings": False}),
    "qwen3moe": (
        "qwen3_moe",
        BASE
        | {
            "head_dim": 32,
            "tie_word_embeddings": False,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        },
    ),
    "gemma3": (
        "gemma3_text",
        BASE
        | {
            "num_hidden_layers": 6,
            "head_dim": 32,
            "rope_theta": 1e6,
            "rope_local_base_freq": 10000.0,
            "query_pre_attn_scalar": 32,
            "sliding_window": 8,
            "sliding_window_pattern": 6,
        },
    ),
    "phi3": ("phi3", BASE | {"tie_word_embeddings": False}),
    "phi3-long": (
        "phi3",
        BASE
        | {
            "tie_word_embeddings": False,
            "partial_rotary_factor": 0.75,
            "max_position_embeddings": 1024,
            "original_max_position_embeddings": 256,
            "rope_scaling": {
                "type": "longrope",
                "long_factor": [1.0, 1.25, 1.5, 2.0, 3.0, 4.0],
                "short_factor": [1.0, 1.0, 1.0, 1.0, 1.5, 1.5],
            },
        },
    ),
}

_ARCH = more.ARCH | {"gemma3_text": "gemma3", "qwen3_moe": "qwen3moe"}
_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.switch_mlp.gate_proj": "ffn_gate_exps",
    "mlp.switch_mlp.up_proj": "ffn_up_exps",
    "mlp.switch_mlp.down_proj": "ffn_down_exps",
}
_TOP = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.embedding_norm": "token_embd_norm",
}

_SCALES_AT = {
    "Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,),
    "TQ1_0": (52,), "TQ2_0": (64,),
}  # fmt: skip

_K_QUANTS = {"Q4_K": kquants.q4_k, "Q6_K": kquants.q6_k}

KindOf = Callable[[str], str]
"""Chooses the ggml type of a matrix by its GGUF name."""


def make_pair(
    folder: Path,
    family: str,
    kind_of: KindOf = lambda name: "F32",
    metadata: dict[str, Any] | None = None,
    split: int = 0,
    **changes: Any,
) -> tuple[Path, Path]:
    """A random MLX model folder and a GGUF file of the same weights; `changes` go into its configuration.

    `split`: tensors to a part; the path is then the first part's.
    """
    architecture, config = FAMILIES[family]
    mlx_folder = folder / "mlx"
    tiny.make(mlx_folder, architecture, config | changes, taught=False)
    path = folder / f"{family}.gguf"
    arch = "qwen3vl" if family == "qwen3vl" else None
    write_gguf(path, mlx_folder, kind_of, metadata or {}, split, arch=arch)
    return mlx_folder, min(folder.glob(f"{family}-00001-of-*.gguf"), default=path)


def write_gguf(
    path: Path,
    mlx_folder: Path,
    kind_of: KindOf,
    metadata: dict[str, Any],
    split: int = 0,
    *,
    arch: str | None = None,
    extra: Sequence[str] = (),
) -> None:
    """`extra`: names of further tensors, which no text model has."""
    config = json.loads((mlx_folder / "config.json").read_text())
    arch = arch or _ARCH.get(config["model_type"], config["model_type"])
    writer = GGUFWriter(path, arch, split_max_tensors=split)
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config.get("intermediate_size") or config["block_ff_dim"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(more.key_value_heads(config))
    key, value, rotated = more.head_lengths(config)
    writer.add_key_length(key)
    writer.add_value_length(value)
    if arch != "cohere2":
        writer.add_layer_norm_rms_eps(config.get("rms_norm_eps") or config["norm_eps"])
    writer.add_rope_freq_base((config.get("rope_parameters") or config)["rope_theta"])
    writer.add_rope_dimension_count(rotated)
    writer.add_name("tiny")
    if arch == "gemma3":
        writer.add_sliding_window(config["sliding_window"])
    more.add_keys(writer, arch, config)
    if arch == "qwen3vl":
        writer.add_rope_dimension_sections([6, 5, 5, 0])
    _add_rope_scaling(writer, config, head_dim)
    metadata = dict(metadata)
    _add_vocabulary(writer, mlx_folder, metadata.pop("tokenizer.ggml.pre", None))
    for key, value in metadata.items():
        add = writer.add_bool if isinstance(value, bool) else writer.add_uint32
        (writer.add_string if isinstance(value, str) else add)(key, value)
    for name in extra:
        writer.add_tensor(name, np.zeros((4, 4), np.float32))
    for name, values in load_file(mlx_folder / "model.safetensors").items():
        ours, data = _to_ggml(name, values.astype(np.float32), config, arch)
        matrix = data.ndim > 1 and not ours.endswith((".bias", "shortconv.conv.weight"))
        kind = GGMLQuantizationType[kind_of(ours)] if matrix else GGMLQuantizationType.F32
        writer.add_tensor(ours, _encode(data, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _encode(data: np.ndarray, kind: GGMLQuantizationType) -> np.ndarray:
    """In ggml's type; random blocks where the gguf package can read a type but not write it, nor we."""
    if kind.name in _K_QUANTS:
        return _K_QUANTS[kind.name](data)
    try:
        return quantize(data, kind)
    except NotImplementedError:
        return random_blocks(kind.name, *data.shape)


def random_blocks(kind: str, rows: int, columns: int) -> np.ndarray:
    """Valid rows of a ggml type: random bits, with scales of a sensible size; uint8 [rows, bytes per row]."""
    _, block, size = next(entry for entry in TENSOR_TYPES.values() if entry[0] == kind)
    rng = np.random.default_rng(len(kind) + rows)
    if kind in ("F32", "F64", "F16", "BF16"):
        values = rng.normal(size=(rows, columns))
        if kind == "BF16":
            return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return values.astype({"F32": "f4", "F64": "f8", "F16": "f2"}[kind]).view(np.uint8)
    blocks = rng.integers(0, 256, (rows, columns // block, size), dtype=np.uint8)
    if kind == "MXFP4":
        blocks[..., 0] = rng.integers(118, 124, blocks.shape[:2])
    elif kind == "IQ1_M":
        # Its scale hides in the top bits of four 16-bit words: 0x2E66 is 0.1.
        blocks[..., 49:56:2] = (blocks[..., 49:56:2] & 0x0F) | (np.array([0x6, 0x6, 0xE, 0x2], np.uint8) << 4)
    else:
        for at in _SCALES_AT.get(kind, (0,)):
            scale = rng.uniform(0.001, 0.01, blocks.shape[:2]).astype(np.float16)
            blocks[..., at : at + 2] = scale[..., None].view(np.uint8)
    return blocks.reshape(rows, -1)


def _to_ggml(name: str, values: np.ndarray, config: dict[str, Any], arch: str) -> tuple[str, np.ndarray]:
    stem, _, leaf = name.rpartition(".")
    if arch in more.PLUS_ONE and stem.endswith("norm"):
        values = values + 1
    if stem in _TOP:
        return f"{_TOP[stem]}.{leaf}", values
    _, _, layer, rest = stem.split(".", 3)
    if leaf == "e_score_correction_bias":
        return f"blk.{layer}.exp_probs_b.bias", values
    if leaf == "sinks":
        return f"blk.{layer}.attn_sinks.weight", values
    if arch in more.INTERLEAVED and rest in ("self_attn.q_proj", "self_attn.k_proj"):
        heads = config["num_attention_heads" if rest == "self_attn.q_proj" else "num_key_value_heads"]
        shape = values.shape
        values = values.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)
    ours = f"blk.{layer}.{more.NAMES.get(arch, _NAMES)[rest]}.{leaf}"
    return ours, more.reshape(ours, values)


def _add_rope_scaling(writer: GGUFWriter, config: dict[str, Any], head_dim: int) -> None:
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    if not scaling:
        return
    if "yarn" in (scaling.get("rope_type"), scaling.get("type")):
        writer.add_rope_scaling_type(RopeScalingType.YARN)
        writer.add_rope_scaling_factor(scaling["factor"])
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
        if "mscale_all_dim" in scaling:
            # The converter writes a tenth for DeepSeek.
            share = 0.1 if writer.arch == "deepseek2" else 1.0
            writer.add_rope_scaling_yarn_log_mul(share * scaling["mscale_all_dim"])
        return
    if scaling.get("type") == "longrope":
        original = config["original_max_position_embeddings"]
        writer.add_rope_scaling_orig_ctx_len(original)
        stretch = config["max_position_embeddings"] / original
        writer.add_rope_scaling_attn_factors(float(np.sqrt(1 + np.log(stretch) / np.log(original))))
        for length in ("long", "short"):
            factors = np.array(scaling[f"{length}_factor"], np.float32)
            writer.add_tensor(f"rope_factors_{length}.weight", factors)
        return
    # What llama.cpp's converter does for Llama 3.1: one factor per frequency, as a tensor.
    factors = []
    for at in range(0, head_dim, 2):
        wavelength = 2 * np.pi * config["rope_theta"] ** (at / head_dim)
        original, factor = scaling["original_max_position_embeddings"], scaling["factor"]
        if wavelength < original / scaling["high_freq_factor"]:
            factors.append(1.0)
        elif wavelength > original / scaling["low_freq_factor"]:
            factors.append(factor)
        else:
            low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
            smooth = (original / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    writer.add_tensor("rope_freqs.weight", np.array(factors, np.float32))


def _add_vocabulary(writer: GGUFWriter, mlx_folder: Path, cut: str | None) -> None:
    tokenizer = json.loads((mlx_folder / "tokenizer.json").read_text())
    config = json.loads((mlx_folder / "tokenizer_config.json").read_text())
    added = {entry["id"]: entry for entry in tokenizer["added_tokens"]}
    by_id = {index: token for token, index in tokenizer["model"]["vocab"].items()}
    by_id |= {index: entry["content"] for index, entry in added.items()}
    tokens = [by_id[index] for index in range(len(by_id))]
    kinds = [(3 if added[i]["special"] else 4) if i in added else 1 for i in range(len(tokens))]
    writer.add_tokenizer_model("gpt2")
    # transformers gives a "qwen2" model Qwen's pre-tokenizer whatever its files say.
    writer.add_tokenizer_pre(cut or ("qwen2" if writer.arch.startswith("qwen") else "gpt-2"))
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(tokens.index(config["eos_token"]))
    writer.add_pad_token_id(tokens.index(config["pad_token"]))
    writer.add_chat_template(config["chat_template"])
