"""Families of GGUF files as llama.cpp's converter writes them: names of tensors, keys, and what it changes in weights.

Spelled out here and not taken from the importer: see `tiny_gguf`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gguf import ExpertGatingFuncType, GGUFWriter

from tests.support import tiny

BASE: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "vocab_size": tiny.VOCABULARY,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
}

_GRANITE: dict[str, Any] = BASE | {
    "attention_multiplier": 0.2,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.5,
    "logits_scaling": 2.0,
    "attention_bias": False,
    "mlp_bias": False,
}

_DEEPSEEK: dict[str, Any] = BASE | {
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 64,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "tie_word_embeddings": False,
}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma": ("gemma", BASE | {"head_dim": 16}),
    "gemma2": ("gemma2", BASE | {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 512}),
    "qwen2moe": (
        "qwen2_moe",
        BASE
        | {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "shared_expert_intermediate_size": 96,
        },
    ),
    "gpt-oss": (
        "gpt_oss",
        BASE
        | {
            "head_dim": 32,
            "intermediate_size": 64,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_theta": 150000.0,
            "max_position_embeddings": 1024,
            "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256},
        },
    ),
    "mistral3": (
        "ministral3",
        BASE
        | {
            "head_dim": 32,
            "tie_word_embeddings": False,
            "max_position_embeddings": 1024,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e6,
                "factor": 4.0,
                "original_max_position_embeddings": 16,
                "llama_4_scaling_beta": 0.1,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
            },
        },
    ),
    "granite": ("granite", _GRANITE | {"tie_word_embeddings": True}),
    "granitemoe": (
        "granitemoe",
        _GRANITE | {"intermediate_size": 64, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "glm4": ("glm4", BASE | {"head_dim": 32, "attention_bias": True, "partial_rotary_factor": 0.5}),
    "olmo2": ("olmo2", BASE | {"tie_word_embeddings": False}),
    "olmo3": (
        "olmo3",
        BASE
        | {
            "num_hidden_layers": 4,
            "sliding_window": 8,
            "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
            "tie_word_embeddings": False,
        },
    ),
    "smollm3": ("smollm3", BASE | {"num_hidden_layers": 4, "head_dim": 16, "tie_word_embeddings": True}),
    "lfm2": (
        "lfm2",
        {key: value for key, value in BASE.items() if key not in ("rms_norm_eps", "intermediate_size")}
        | {
            "num_hidden_layers": 4,
            "norm_eps": 1e-6,
            "conv_bias": False,
            "conv_L_cache": 3,
            "block_dim": 64,
            "block_ff_dim": 128,
            "block_multiple_of": 32,
            "block_ffn_dim_multiplier": 1.0,
            "block_auto_adjust_ff_dim": False,
            "layer_types": ["conv", "full_attention", "conv", "full_attention"],
        },
    ),
    "cohere2": (
        "cohere2",
        BASE
        | {
            "num_hidden_layers": 4,
            "head_dim": 16,
            "layer_norm_eps": 1e-5,
            "logit_scale": 0.5,
            "sliding_window": 8,
            "sliding_window_pattern": 4,
        },
    ),
    # Keys and values are projected out of the latent apart, as in files since 2025.
    "deepseek3": (
        "deepseek_v3",
        _DEEPSEEK
        | {
            "q_lora_rank": 64,
            "routed_scaling_factor": 2.5,
            "max_position_embeddings": 1024,
            "rope_scaling": {
                "type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 256,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
            },
        },
    ),
    # Both in one projection, as before.
    "deepseek2": (
        "deepseek_v2",
        _DEEPSEEK
        | {
            "q_lora_rank": 64,
            "topk_method": "greedy",
            "n_group": 1,
            "topk_group": 1,
            "max_position_embeddings": 1024,
            "rope_scaling": {
                "type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 256,
                "mscale": 0.707,
                "mscale_all_dim": 0.707,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
            },
        },
    ),
    # What llama.cpp keeps under another name though it computes the same.
    "qwen3vl": ("qwen3", BASE | {"head_dim": 32, "tie_word_embeddings": True}),
}

ARCH: dict[str, str] = {
    "qwen2_moe": "qwen2moe", "gpt_oss": "gpt-oss", "ministral3": "mistral3", "olmo3": "olmo2",
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
}  # fmt: skip
INTERLEAVED = ("llama", "mistral3", "granite", "granitemoe", "smollm3")
PLUS_ONE = ("gemma", "gemma2", "gemma3")

_ATTENTION = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
}
_MLP = {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
_GEMMA_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}

NAMES: dict[str, dict[str, str]] = {
    "gemma2": _ATTENTION | _MLP | _GEMMA_NORMS,
    "gemma3": _ATTENTION | _MLP | _GEMMA_NORMS,
    "olmo2": _ATTENTION | _MLP | _GEMMA_NORMS,
    "qwen2moe": _ATTENTION
    | {
        "mlp.gate": "ffn_gate_inp",
        "mlp.switch_mlp.gate_proj": "ffn_gate_exps",
        "mlp.switch_mlp.up_proj": "ffn_up_exps",
        "mlp.switch_mlp.down_proj": "ffn_down_exps",
        "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
        "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
        "mlp.shared_expert.up_proj": "ffn_up_shexp",
        "mlp.shared_expert.down_proj": "ffn_down_shexp",
    },
    "gpt-oss": _ATTENTION
    | {
        "post_attention_layernorm": "post_attention_norm",
        "mlp.router": "ffn_gate_inp",
        "mlp.experts.gate_proj": "ffn_gate_exps",
        "mlp.experts.up_proj": "ffn_up_exps",
        "mlp.experts.down_proj": "ffn_down_exps",
    },
    "granitemoe": _ATTENTION
    | {
        "block_sparse_moe.router.layer": "ffn_gate_inp",
        "block_sparse_moe.switch_mlp.gate_proj": "ffn_gate_exps",
        "block_sparse_moe.switch_mlp.up_proj": "ffn_up_exps",
        "block_sparse_moe.switch_mlp.down_proj": "ffn_down_exps",
    },
    "glm4": _ATTENTION
    | {
        "post_self_attn_layernorm": "post_attention_norm",
        "post_mlp_layernorm": "post_ffw_norm",
        "mlp.gate_up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    },
    "deepseek2": _ATTENTION
    | _MLP
    | {
        "self_attn.q_a_proj": "attn_q_a",
        "self_attn.q_a_layernorm": "attn_q_a_norm",
        "self_attn.q_b_proj": "attn_q_b",
        "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
        "self_attn.kv_a_layernorm": "attn_kv_a_norm",
        "self_attn.kv_b_proj": "attn_kv_b",
        "self_attn.embed_q": "attn_k_b",
        "self_attn.unembed_out": "attn_v_b",
        "mlp.gate": "ffn_gate_inp",
        "mlp.switch_mlp.gate_proj": "ffn_gate_exps",
        "mlp.switch_mlp.up_proj": "ffn_up_exps",
        "mlp.switch_mlp.down_proj": "ffn_down_exps",
        "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
        "mlp.shared_experts.up_proj": "ffn_up_shexp",
        "mlp.shared_experts.down_proj": "ffn_down_shexp",
    },
    "lfm2": {
        "operator_norm": "attn_norm",
        "ffn_norm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.out_proj": "attn_output",
        "self_attn.q_layernorm": "attn_q_norm",
        "self_attn.k_layernorm": "attn_k_norm",
        "conv.conv": "shortconv.conv",
        "conv.in_proj": "shortconv.in_proj",
        "conv.out_proj": "shortconv.out_proj",
        "feed_forward.w1": "ffn_gate",
        "feed_forward.w3": "ffn_up",
        "feed_forward.w2": "ffn_down",
    },
}


def reshape(name: str, values: np.ndarray) -> np.ndarray:
    """The dimensions of 1 that the converter drops."""
    return values.squeeze() if name.endswith(("shortconv.conv.weight", "ffn_gate_inp_shexp.weight")) else values


def add_keys(writer: GGUFWriter, arch: str, config: dict[str, Any]) -> None:
    """The metadata that only this architecture has."""
    if arch == "gemma2":
        writer.add_attn_logit_softcapping(50.0)
        writer.add_final_logit_softcapping(30.0)
    if arch in ("gemma2", "gpt-oss", "cohere2") or config["model_type"] == "olmo3":
        writer.add_sliding_window(config["sliding_window"])
    if config["model_type"] == "olmo3":
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
    if arch in ("qwen2moe", "qwen3moe", "gpt-oss", "granitemoe"):
        writer.add_expert_count(config.get("num_experts") or config["num_local_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if arch in ("qwen2moe", "qwen3moe", "gpt-oss"):
        writer.add_expert_feed_forward_length(config.get("moe_intermediate_size") or config["intermediate_size"])
    if arch == "qwen2moe":
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    if arch.startswith("granite"):
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    if arch == "cohere2":
        writer.add_logit_scale(config["logit_scale"])
        writer.add_layer_norm_eps(config["layer_norm_eps"])
    if arch == "deepseek2":
        _add_deepseek_keys(writer, config)
    if arch == "lfm2":
        writer.add_shortconv_l_cache(config["conv_L_cache"])
    if arch == "mistral3":
        writer.add_attn_temperature_scale(config["rope_parameters"]["llama_4_scaling_beta"])


def _add_deepseek_keys(writer: GGUFWriter, config: dict[str, Any]) -> None:
    apart = config["model_type"] == "deepseek_v3"
    if apart:
        writer.add_key_length_mla(config["qk_nope_head_dim"] + config["qk_rope_head_dim"])
        writer.add_value_length_mla(config["v_head_dim"])
    writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_kv_lora_rank(config["kv_lora_rank"])
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_count(config["n_routed_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_weights_scale(config.get("routed_scaling_factor", 1.0))
    writer.add_expert_weights_norm(apart)
    writer.add_expert_gating_func(ExpertGatingFuncType.SIGMOID if apart else ExpertGatingFuncType.SOFTMAX)


def head_lengths(config: dict[str, Any]) -> tuple[int, int, int]:
    """Of keys and values, and how much of a key is rotated."""
    if config["model_type"] == "deepseek_v3":
        latent = config["kv_lora_rank"]
        return latent + config["qk_rope_head_dim"], latent, config["qk_rope_head_dim"]
    if config["model_type"] == "deepseek_v2":
        rope = config["qk_rope_head_dim"]
        return config["qk_nope_head_dim"] + rope, config["v_head_dim"], rope
    length = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return length, length, int(length * config.get("partial_rotary_factor", 1.0))


def key_value_heads(config: dict[str, Any]) -> int | list[int]:
    if config["model_type"] == "deepseek_v3":
        return 1  # the latent
    count: int = config["num_key_value_heads"]
    if config["model_type"] != "lfm2":
        return count
    return [count if kind == "full_attention" else 0 for kind in config["layer_types"]]
