"""Tiny configurations of every model type of mlx-lm that can be built on the spot: the table, and the maker.

    build("gemma2")      the network with random weights that are sensitive to the whole context, in memory

`CONFIGS` is by model type as config.json names it; types that mlx-lm maps to the code of another are in `ALIASES`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tests.support.tiny import ARCHITECTURES, VOCABULARY, enliven

_DENSE: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-6,
    "norm_eps": 1e-6,
    "layer_norm_eps": 1e-6,
    "layer_norm_epsilon": 1e-6,
    "vocab_size": VOCABULARY,
    "rope_theta": 10000.0,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "use_bias": False,
}
_SQUARE = {"num_attention_heads": 2}
"""Heads that fill the hidden size, for models without a head size of their own."""
_EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_local_experts": 4,
    "num_shared_experts": 1,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "routed_scaling_factor": 1.0,
    "n_group": 1,
    "topk_group": 1,
    "rope_scaling": None,
}
_LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "rope_scaling": None,
}
_WINDOWS: dict[str, Any] = {"sliding_window": 32, "layer_types": ["sliding_attention", "full_attention"]}
_DEEP = {"num_hidden_layers": 4}
_LINEAR: dict[str, Any] = {
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 1,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 2,
}
_ROPES = {
    "rope_parameters": {name: {"rope_type": "default", "rope_theta": 10000.0} for name in _WINDOWS["layer_types"]},
}
_YARN = {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 2048, "mscale": 1.0, "mscale_all_dim": 1.0}
_LONGROPE = {
    "type": "longrope", "original_max_position_embeddings": 4096, "short_factor": [1.0] * 8, "long_factor": [1.0] * 8,
}  # fmt: skip
_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
_GPT: dict[str, Any] = {
    "n_ctx": 1024,
    "n_embd": 64,
    "n_head": 4,
    "n_layer": 2,
    "n_inner": 96,
    "n_positions": 1024,
    "layer_norm_epsilon": 1e-5,
    "vocab_size": VOCABULARY,
}
_KDA = {"kda_layers": [1, 3], "full_attn_layers": [2, 4], "num_heads": 2, "head_dim": 32, "short_conv_kernel_size": 4}
_MAMBA: dict[str, Any] = {
    "mamba_num_heads": 4,
    "mamba_n_heads": 4,
    "mamba_head_dim": 32,
    "mamba_d_head": 32,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_n_groups": 1,
    "mamba_proj_bias": False,
    "mamba_conv_bias": True,
}
_GRANITE = {"logits_scaling": 1.0, "attention_multiplier": 0.2, "embedding_multiplier": 1.0, "residual_multiplier": 0.5}
_DSA = _DENSE | _EXPERTS | _LATENT | {"index_head_dim": 32, "index_n_heads": 4, "index_topk": 24}
_DEEPSEEK = _DENSE | _EXPERTS | _LATENT
_QWEN3_NEXT = _DENSE | _EXPERTS | _LINEAR | _DEEP | {"partial_rotary_factor": 0.5}
_LLAMA4 = ARCHITECTURES["llama4"]["text_config"]


def _inside(text: dict[str, Any], model_type: str) -> dict[str, Any]:
    """A model that sees, as far as mlx-lm runs it: the text model within."""
    return {"text_config": {"model_type": model_type, **text}, "vocab_size": VOCABULARY}


CONFIGS: dict[str, dict[str, Any]] = {
    "Klear": _DENSE | _EXPERTS | _SQUARE,
    "afm7": {
        "hidden_dim": 64, "num_layers": 4, "num_kv_reuse_layers": 2, "num_heads": 4, "num_kv_heads": 2,
        "vocab_size": VOCABULARY,
    },
    "afmoe": _DENSE | _EXPERTS | _WINDOWS | {"num_dense_layers": 1},
    "apertus": _DENSE | _SQUARE | {"post_norm": False, "qk_norm": True},
    "baichuan_m1": _DENSE | _DEEP | {"sliding_window": 32, "sliding_window_layers": [1, 3], "conv_window": 2},
    "bailing_hybrid": _DENSE | _EXPERTS | _LATENT | _DEEP | {"layer_group_size": 2, "group_norm_size": 1},
    "bailing_moe": _DENSE | _EXPERTS | _SQUARE,
    "bailing_moe_linear": _DENSE | _EXPERTS | _DEEP | {"layer_group_size": 2, "group_norm_size": 1},
    "bailing_moe_v3": _DENSE | _EXPERTS | _LATENT | _DEEP
    | {"layer_group_size": 2, "moe_shared_expert_intermediate_size": 32},
    "cohere": _DENSE | _SQUARE,
    "cohere2": _DENSE | _DEEP | _SQUARE | {"sliding_window": 32, "sliding_window_pattern": 2},
    "dbrx": {
        "vocab_size": VOCABULARY, "d_model": 64, "n_layers": 2, "n_heads": 4,
        "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2},
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
    },
    "deepseek": _DENSE | _EXPERTS | _SQUARE,
    "deepseek_v2": _DEEPSEEK | {"rope_scaling": _YARN},
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v32": _DSA,
    "deepseek_v41": _DENSE | _EXPERTS | _DEEP
    | {
        "q_lora_rank": 48, "qk_rope_head_dim": 16, "head_dim": 32, "o_groups": 2, "o_lora_rank": 16,
        "sliding_window": 32, "compress_ratios": [0, 0, 0, 0], "hc_mult": 2, "hc_sinkhorn_iters": 2,
    },
    "dots1": _DENSE | _EXPERTS,
    "ernie4_5": _DENSE,
    "ernie4_5_moe": _DENSE | _EXPERTS | {"moe_num_experts": 4, "moe_k": 2, "moe_layer_start_index": 1},
    "exaone": _DENSE | _SQUARE | {"num_layers": 2},
    "exaone4": _DENSE | _DEEP | {"rope_scaling": None, "sliding_window": 32, "sliding_window_pattern": "LG"},
    "exaone_moe": _DENSE | _EXPERTS | _WINDOWS | {"is_moe_layer": [False, True]},
    "falcon_h1": ARCHITECTURES["falcon_h1"],
    "gear": _DENSE | _WINDOWS,
    "gemma": _DENSE,
    "gemma2": _DENSE | {"query_pre_attn_scalar": 32.0},
    "gemma3": _inside(ARCHITECTURES["gemma3_text"], "gemma3_text"),
    "gemma3_text": ARCHITECTURES["gemma3_text"] | {"sliding_window": 32},
    "gemma3n": ARCHITECTURES["gemma3n"],
    "gemma4": _inside(_DENSE | _DEEP | {
        "sliding_window": 32, "sliding_window_pattern": 2, "global_head_dim": 32, "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": VOCABULARY,
    }, "gemma4_text"),
    "gemma4_text": _DENSE | _DEEP | {
        "sliding_window": 32, "sliding_window_pattern": 2, "global_head_dim": 64, "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": VOCABULARY,
    },
    "glm": _DENSE,
    "glm4": _DENSE | {"partial_rotary_factor": 0.5},
    "glm4_moe": _DENSE | _EXPERTS | {"use_qk_norm": True, "partial_rotary_factor": 0.5},
    "glm4_moe_lite": _DEEPSEEK,
    "glm_moe_dsa": _DSA | _ROPE | {"topk_method": "noaux_tc", "scoring_func": "sigmoid"},
    "gpt2": _GPT,
    "gpt_bigcode": _GPT,
    "gpt_neox": _DENSE | {"rotary_emb_base": 10000, "rotary_pct": 0.5, "num_key_value_heads": 4},
    "gpt_oss": ARCHITECTURES["gpt_oss"] | {"sliding_window": 32},
    "gptj": _GPT | {"rotary_dim": 8},
    "granite": _DENSE | _SQUARE | _GRANITE,
    "granitemoe": _DENSE | _EXPERTS | _SQUARE | _GRANITE,
    "granitemoehybrid": _DENSE | _EXPERTS | _SQUARE | _GRANITE | _MAMBA
    | {"layer_types": ["mamba", "attention"], "shared_intermediate_size": 32, "position_embedding_type": "nope"},
    "helium": _DENSE,
    "hunyuan": _DENSE | _EXPERTS | _SQUARE
    | {
        "moe_topk": 2, "num_shared_expert": 1, "use_mixed_mlp_moe": True, "use_qk_norm": True, "use_cla": True,
        "cla_share_factor": 2, "rope_scaling": {"alpha": 1000.0, "factor": 1.0, "type": "dynamic"},
    },
    "hunyuan_v1_dense": _DENSE | {"rope_scaling": {"alpha": 1000.0, "factor": 1.0, "type": "dynamic"}},
    "internlm2": _DENSE | _SQUARE,
    "internlm3": _DENSE,
    "iquestloopcoder": _DENSE | {"loop_num": 2, "loop_window_size": 32},
    "jamba": ARCHITECTURES["jamba"],
    "kimi_k25": _inside(_DEEPSEEK, "deepseek_v3"),
    "kimi_k3": _inside(_DENSE | _EXPERTS | _LATENT | _DEEP | {
        "linear_attn_config": _KDA, "num_experts_per_token": 2, "attn_res_block_size": 2,
    }, "kimi_linear"),
    "kimi_linear": _DENSE | _EXPERTS | _LATENT | _DEEP
    | {"linear_attn_config": _KDA, "model_max_length": 4096, "num_experts_per_token": 2},
    "kimi_vl": _inside(_DEEPSEEK, "deepseek_v3"),
    "laguna": _DENSE | _EXPERTS | _WINDOWS
    | {
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
        "num_attention_heads_per_layer": [4, 4], "mlp_layer_types": ["dense", "sparse"],
    },
    "lfm2": ARCHITECTURES["lfm2"],
    "lfm2-vl": _inside(ARCHITECTURES["lfm2"], "lfm2"),
    "lfm2_moe": ARCHITECTURES["lfm2"] | _EXPERTS | {
        "intermediate_size": 96, "use_expert_bias": True, "num_dense_layers": 1, "rope_theta": 10000.0,
    },
    "lille-130m": {
        "block_size": 1024, "layer_norm_eps": 1e-5, "n_embd": 64, "n_head": 4, "n_kv_heads": 2, "n_layer": 2,
        "rope_theta": 10000.0, "vocab_size": VOCABULARY,
    },
    "llama": _DENSE | _DEEP | {"sliding_window": 32, "layer_types": ["sliding_attention", "full_attention"] * 2},
    "llama4": ARCHITECTURES["llama4"],
    "llama4_text": _LLAMA4 | {"no_rope_layers": [1, 1, 1, 0], "tie_word_embeddings": True},
    "longcat_flash": _DENSE | _EXPERTS | _LATENT
    | {
        "attention_method": "MLA", "zero_expert_type": "identity", "ffn_hidden_size": 96, "moe_topk": 2,
        "expert_ffn_hidden_size": 32, "zero_expert_num": 1, "num_layers": 2, "mla_scale_q_lora": True,
        "mla_scale_kv_lora": True,
    },
    "longcat_flash_ngram": _DENSE | _EXPERTS | _LATENT
    | {
        "zero_expert_type": "identity", "ffn_hidden_size": 96, "moe_topk": 2, "expert_ffn_hidden_size": 32,
        "zero_expert_num": 1, "num_layers": 2, "mla_scale_q_lora": True, "mla_scale_kv_lora": True,
        "ngram_vocab_size_ratio": 2, "emb_neighbor_num": 3, "emb_split_num": 2,
    },
    "mamba": ARCHITECTURES["mamba"],
    "mamba2": ARCHITECTURES["mamba2"],
    "mellum": _DENSE | _EXPERTS | _WINDOWS | _ROPES,
    "mimo": _DENSE | _SQUARE,
    "mimo_v2_flash": _DENSE | _EXPERTS | _DEEP
    | {
        "hybrid_layer_pattern": [0, 1, 0, 1], "moe_layer_freq": [0, 1, 1, 1], "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False, "sliding_window_size": 32, "layernorm_epsilon": 1e-6,
        "swa_rope_theta": 10000.0, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "v_head_dim": 32,
        "swa_head_dim": 32, "swa_v_head_dim": 32, "partial_rotary_factor": 0.5, "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
    },
    "minicpm": _DENSE | _SQUARE | {"dim_model_base": 32, "scale_depth": 1.4, "scale_emb": 2},
    "minicpm3": _DENSE | _LATENT
    | {"rope_scaling": _LONGROPE, "dim_model_base": 32, "scale_depth": 1.4, "scale_emb": 2},
    "minimax": _DENSE | _EXPERTS | {"shared_intermediate_size": 32, "rotary_dim": 16},
    "minimax_m3_vl": _inside(_DENSE | _EXPERTS | {
        "dense_intermediate_size": 96, "shared_intermediate_size": 32, "moe_layer_freq": [0, 1],
    }, "minimax_m3"),
    "ministral3": _DENSE | _WINDOWS | {
        "rope_parameters": {
            "rope_type": "default", "type": "default", "rope_theta": 10000.0, "llama_4_scaling_beta": 0.1,
            "original_max_position_embeddings": 64,
        },
    },
    "mistral3": _inside(_DENSE, "llama"),
    "mistral4": _DENSE | _EXPERTS | _LATENT | {
        "rope_parameters": {"rope_type": "default", "type": "default", "rope_theta": 10000.0,
                            "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 64},
    },
    "mixtral": _DENSE | _EXPERTS | _SQUARE,
    "muse_glimmer": _DENSE | _WINDOWS,
    "nanbeige": _DENSE,
    "nanochat": _DENSE | _SQUARE,
    "nemotron": _DENSE | {"hidden_act": "relu2", "partial_rotary_factor": 0.5},
    "nemotron-nas": _DENSE | {
        "block_configs": [
            {"attention": {"n_heads_in_group": 2, "no_op": False, "replace_with_linear": False},
             "ffn": {"ffn_mult": 1.0, "no_op": False, "replace_with_linear": False}},
            {"attention": {"n_heads_in_group": None, "no_op": True, "replace_with_linear": False},
             "ffn": {"ffn_mult": 1.0, "no_op": False, "replace_with_linear": False}},
        ],
    },
    "nemotron_h": ARCHITECTURES["nemotron_h"],
    "olmo2": _DENSE,
    "olmo3": _DENSE | _WINDOWS,
    "olmo_hybrid": _DENSE | _LINEAR
    | {"linear_allow_neg_eigval": True, "layer_types": ["linear_attention", "full_attention"]},
    "olmoe": _DENSE | _EXPERTS,
    "openelm": {
        "head_dim": 32, "num_transformer_layers": 2, "model_dim": 64, "vocab_size": VOCABULARY,
        "ffn_dim_divisor": 32, "num_query_heads": [4, 4], "num_kv_heads": [2, 2], "ffn_multipliers": [1.5, 2.0],
    },
    "phi": _DENSE | _SQUARE,
    "phi3": _DENSE | _SQUARE,
    "phimoe": _DENSE | _EXPERTS | _SQUARE | {
        "rope_scaling": {"long_factor": [1.0] * 16, "short_factor": [1.0] * 16, "long_mscale": 1.0,
                         "short_mscale": 1.0, "original_max_position_embeddings": 4096, "type": "longrope"},
    },
    "phixtral": {
        "num_vocab": VOCABULARY, "model_dim": 64, "num_heads": 2, "num_layers": 2, "rotary_dim": 16,
        "num_experts_per_tok": 2, "num_local_experts": 4,
    },
    "pixtral": _inside(_DENSE, "llama"),
    "plamo": _DENSE | {"n_shared_head": 2},
    "plamo2": _DENSE | _MAMBA | _DEEP | {"hidden_size_per_head": 32, "mamba_step": 2, "attention_window_size": 2048},
    "plamo3": _DENSE | _DEEP | {"window_size": 32, "sliding_window": 32, "sliding_window_pattern": 2},
    "qwen": _DENSE | _SQUARE | {"kv_channels": 32},
    "qwen2": _DENSE | _SQUARE,
    "qwen2_moe": _DENSE | _EXPERTS | _SQUARE,
    "qwen2_vl": _inside(_DENSE | _SQUARE, "qwen2"),
    "qwen3": _DENSE,
    "qwen3_5": _inside(_QWEN3_NEXT | _ROPE, "qwen3_5_text"),
    "qwen3_5_moe": _inside(_QWEN3_NEXT | _ROPE, "qwen3_5_moe_text"),
    "qwen3_moe": _DENSE | _EXPERTS,
    "qwen3_next": _QWEN3_NEXT,
    "qwen3_vl": _inside(_DENSE, "qwen3"),
    "qwen3_vl_moe": _inside(_DENSE | _EXPERTS, "qwen3_moe"),
    "recurrent_gemma": _DENSE | {
        "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 1, "conv1d_width": 4,
        "logits_soft_cap": 30.0, "attention_window_size": 32,
        "block_types": ["recurrent", "recurrent", "attention"],
    },
    "rwkv7": _DENSE | {"a_low_rank_dim": 16, "v_low_rank_dim": 16, "gate_low_rank_dim": 16, "decay_low_rank_dim": 16},
    "seed_oss": _DENSE,
    "smollm3": _DENSE | _SQUARE | _DEEP,
    "solar_open": _DENSE | _EXPERTS | {"partial_rotary_factor": 1.0},
    "spark2_5": _DENSE | _WINDOWS | _ROPES,
    "stablelm": _DENSE | _SQUARE | {"use_qkv_bias": False, "partial_rotary_factor": 0.5},
    "starcoder2": _DENSE | _SQUARE | {"tie_word_embeddings": True},
    "step3p5": _DENSE | _WINDOWS | {
        "num_attention_groups": 2, "moe_num_experts": 4, "moe_top_k": 2, "moe_intermediate_size": 32,
        "share_expert_dim": 32, "moe_layers_enum": "1",
        "attention_other_setting": {"num_attention_heads": 4, "num_attention_groups": 2},
    },
    "talkie": _DENSE | _SQUARE,
    "telechat3": _DENSE | _SQUARE,
    "youtu_llm": _DENSE | _LATENT,
}  # fmt: skip

NOT_HERE = {"bitnet", "muse_spark", "olmo", "phi3small", "prism_hadamard_qwen35"}
"""Types that cannot run here: bitnet and muse_spark have kernels for Metal only, olmo needs a package of its own
(ai2-olmo), prism_hadamard_qwen35 reads packed weights only, and the compiled activation of phi3small writes over memory
on MLX's CPU backend."""

ALIASES = {
    "mistral": "llama", "llava": "mistral3", "phi-msft": "phixtral", "falcon_mamba": "mamba",
    "joyai_llm_flash": "deepseek_v3", "kimi_k2": "deepseek_v3", "qwen2_5_vl": "qwen2_vl", "minimax_m2": "minimax",
    "iquestcoder": "llama", "xverse": "llama", "gemma4_unified": "gemma4", "deepseek_v41_text": "deepseek_v41",
}  # fmt: skip
"""Model type → the type whose code runs it."""


def build(model_type: str) -> Any:
    """A tiny network of this model type, ready to run; the same weights every time."""
    import mlx.core as mx

    mx.random.seed(0)
    module = import_module(f"mlx_lm.models.{model_type}")
    model = module.Model(module.ModelArgs.from_dict({"model_type": model_type, **CONFIGS[model_type]}))
    enliven(model)
    model.eval()
    mx.eval(model.parameters())
    return model
