"""Latent attention: DeepSeek's layout in GGUF files (`deepseek2`), with keys and values as one narrow latent; pure.

The projections out of the latent are in a file either together (`attn_kv_b`) or apart (`attn_k_b`, transposed, and
`attn_v_b`); mlx-lm's V3 takes both forms, its V2 the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from omlx_registry.gguf.container import GgufError, GgufTensor
from omlx_registry.gguf.keys import GgufKeys, shortest

LATENT_PARTS: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": "self_attn.embed_q",
    "attn_v_b": "self_attn.unembed_out",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate.weight",
    "ffn_gate_exps": "mlp.switch_mlp.gate_proj",
    "ffn_up_exps": "mlp.switch_mlp.up_proj",
    "ffn_down_exps": "mlp.switch_mlp.down_proj",
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
    "exp_probs_b": "mlp.gate.e_score_correction_bias",
}
"""Names behind `blk.N.` and module paths behind `model.layers.N.`."""
_DENSE: Final = frozenset({"ffn_gate", "ffn_up", "ffn_down"})


def latent_settings(keys: GgufKeys, config: Mapping[str, Any], tensors: Mapping[str, GgufTensor]) -> dict[str, Any]:
    """What DeepSeek's architecture adds to config.json: V3's where experts are chosen by sigmoids, else V2's."""
    rope = keys.whole("rope.dimension_count")
    key = keys.whole("attention.key_length_mla", keys.get("attention.key_length"))
    if key <= rope:
        raise GgufError("the GGUF file's key length is not larger than its rope dimension count")
    sigmoid = keys.get("expert_gating_func") == 2
    layers = range(config["num_hidden_layers"])
    joined = all(f"blk.{layer}.attn_kv_b.weight" in tensors for layer in layers)
    apart = all(f"blk.{layer}.attn_{part}_b.weight" in tensors for layer in layers for part in ("k", "v"))
    if not joined and not (apart and sigmoid):
        raise GgufError(
            "DeepSeek V2 files that keep attn_k_b and attn_v_b apart cannot be imported: use an older file of the "
            "model, or its safetensors repository"
            if apart
            else "the 'deepseek2' GGUF file lacks the tensor 'blk.0.attn_k_b.weight'"
        )
    groups = keys.whole("expert_group_count", 1)
    found: dict[str, Any] = {
        "model_type": "deepseek_v3" if sigmoid else "deepseek_v2",
        "num_key_value_heads": config["num_attention_heads"],
        "qk_rope_head_dim": rope,
        "qk_nope_head_dim": key - rope,
        "v_head_dim": keys.whole("attention.value_length_mla", keys.get("attention.value_length")),
        "kv_lora_rank": keys.whole("attention.kv_lora_rank"),
        "q_lora_rank": keys.whole("attention.q_lora_rank") if keys.get("attention.q_lora_rank") else None,
        "first_k_dense_replace": keys.whole("leading_dense_block_count", 0, least=0),
        "moe_layer_freq": 1,
        "moe_intermediate_size": keys.whole("expert_feed_forward_length"),
        "n_routed_experts": keys.whole("expert_count"),
        "n_shared_experts": keys.whole("expert_shared_count"),
        "num_experts_per_tok": keys.whole("expert_used_count"),
        "routed_scaling_factor": keys.real("expert_weights_scale", 1.0),
        "norm_topk_prob": bool(keys.get("expert_weights_norm")),
        "n_group": groups,
        "topk_group": keys.whole("expert_group_used_count", 1),
        "topk_method": "noaux_tc" if sigmoid else "group_limited_greedy" if groups > 1 else "greedy",
        "scoring_func": "sigmoid" if sigmoid else "softmax",
        "attention_bias": False,
    }
    if keys.get("rope.scaling.type") == "yarn":
        # The file has a tenth of mscale_all_dim; both scales are the same in all models of the family.
        scale = shortest(10 * keys.real("rope.scaling.yarn_log_multiplier", 0.1))
        found["rope_scaling"] = {
            "type": "yarn",
            "factor": keys.real("rope.scaling.factor"),
            "original_max_position_embeddings": keys.whole("rope.scaling.original_context_length"),
            "mscale": scale,
            "mscale_all_dim": scale,
            "beta_fast": keys.real("rope.scaling.yarn_beta_fast", 32.0),
            "beta_slow": keys.real("rope.scaling.yarn_beta_slow", 1.0),
        }
    elif not sigmoid:
        # mlx-lm's V2 needs a rope_scaling; this one has no effect.
        found["rope_scaling"] = {"type": "yarn", "factor": 1.0, "original_max_position_embeddings": 4096}
    return found


def absent_parts(layer: int, config: Mapping[str, Any]) -> frozenset[str]:
    """Optional parts of a layer. `latent_settings` checks both forms of the projections."""
    query = {"attn_q"} if config["q_lora_rank"] else {"attn_q_a", "attn_q_a_norm", "attn_q_b"}
    dense = layer < config["first_k_dense_replace"]
    experts = {part for part in LATENT_PARTS if part.endswith(("exps", "shexp", "gate_inp"))}
    return frozenset({*query, "attn_k_b", "attn_v_b", "attn_kv_b", "exp_probs_b", *(experts if dense else _DENSE)})
