"""Layouts of Gemma 4 and Gemma 3n: layers that differ in width, share keys and values, and have inputs of their own.

See `layout`. Their norms are stored as they are, unlike those of earlier Gemmas.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from omlx_registry.gguf.container import GgufError, GgufTensor
from omlx_registry.gguf.keys import GgufKeys
from omlx_registry.gguf.layout import COMMON, GEMMA_NORMS, QK_NORMS, Config, Layout
from omlx_registry.gguf.picks import TensorPick

_NORMS: Final = {**COMMON, **GEMMA_NORMS, **QK_NORMS}
_OWN_INPUTS: Final = {
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
}
_EXPERTS: Final = {
    "ffn_gate_inp": "router.proj",
    "ffn_gate_inp_scale": "router.scale",
    "ffn_down_exps_scale": "router.per_expert_scale",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
    "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "post_ffw_norm_2": "post_feedforward_layernorm_2",
    "ffn_gate_exps": "experts.switch_glu.gate_proj",
    "ffn_up_exps": "experts.switch_glu.up_proj",
    "ffn_down_exps": "experts.switch_glu.down_proj",
}
_OWN_KEYS: Final = frozenset({"attn_k", "attn_v", "attn_k_norm"})


def _kinds(keys: GgufKeys, layers: int) -> list[str]:
    """The kinds of attention of the layers."""
    slides = keys.per_layer("attention.sliding_window_pattern", layers)
    if slides is None:
        raise GgufError(f"the GGUF file lacks '{keys.architecture}.attention.sliding_window_pattern' in its metadata")
    return ["sliding_attention" if slide else "full_attention" for slide in slides]


def _rows(tensors: Mapping[str, GgufTensor], name: str, default: int) -> int:
    tensor = tensors.get(name)
    return default if tensor is None else tensor.rows


def _gemma4(keys: GgufKeys, config: Mapping[str, Any], tensors: Mapping[str, GgufTensor]) -> Config:
    layers = config["num_hidden_layers"]
    kinds = _kinds(keys, layers)
    shared = keys.whole("attention.shared_kv_layers", 0, least=0)
    heads = keys.per_layer("attention.head_count_kv", layers) or [config["num_key_value_heads"]] * layers
    widths = keys.per_layer("feed_forward_length", layers) or [config["intermediate_size"]] * layers
    first_full = kinds.index("full_attention") if "full_attention" in kinds else -1
    first_sliding = kinds.index("sliding_attention") if "sliding_attention" in kinds else -1
    tied = first_full >= 0 and f"blk.{first_full}.attn_v.weight" not in tensors
    inputs = keys.whole("embedding_length_per_layer_input", 0, least=0)
    sliding = {"rope_type": "default", "rope_theta": keys.real("rope.freq_base_swa", 10_000.0)}
    found: Config = {
        "head_dim": keys.whole("attention.key_length_swa"),
        "global_head_dim": keys.whole("attention.key_length"),
        "num_key_value_heads": heads[first_sliding],
        "num_global_key_value_heads": heads[first_full] if tied else None,
        "attention_k_eq_v": tied,
        "num_kv_shared_layers": shared,
        "intermediate_size": widths[0],
        "use_double_wide_mlp": bool(shared) and widths[-1] == 2 * widths[0],
        "layer_types": kinds,
        "sliding_window": keys.whole("attention.sliding_window"),
        "hidden_size_per_layer_input": inputs,
        "vocab_size_per_layer_input": _rows(tensors, "per_layer_token_embd.weight", config["vocab_size"]),
        "final_logit_softcapping": keys.real("final_logit_softcapping", 30.0),
        "rope_parameters": {
            "full_attention": {"rope_type": "proportional", "rope_theta": config["rope_theta"]},
            "sliding_attention": sliding,
        },
        "hidden_act": "gelu_pytorch_tanh",
        "enable_moe_block": bool(keys.get("expert_count")),
    }
    if found["enable_moe_block"]:
        found |= {
            "num_experts": keys.whole("expert_count"),
            "top_k_experts": keys.whole("expert_used_count"),
            "moe_intermediate_size": keys.whole("expert_feed_forward_length"),
        }
    return found


def _absent4(layer: int, config: Mapping[str, Any]) -> frozenset[str]:
    absent = set() if config["enable_moe_block"] else {*_EXPERTS}
    if not config["hidden_size_per_layer_input"]:
        absent |= {*_OWN_INPUTS}
    if layer >= config["num_hidden_layers"] - config["num_kv_shared_layers"]:
        absent |= _OWN_KEYS
    if config["attention_k_eq_v"] and config["layer_types"][layer] == "full_attention":
        absent |= {"attn_v"}
    return frozenset(absent)


def _gate_up(config: Mapping[str, Any]) -> list[tuple[str, TensorPick]]:
    width = config["moe_intermediate_size"]
    picks = {"gate": TensorPick.every(0, width), "up": TensorPick.every(width, 2 * width)}
    return [(f"experts.switch_glu.{name}_proj", pick) for name, pick in picks.items()]


def _gemma3n(keys: GgufKeys, config: Mapping[str, Any], tensors: Mapping[str, GgufTensor]) -> Config:
    layers = config["num_hidden_layers"]
    scales = keys.get("activation_sparsity_scale")
    if not isinstance(scales, np.ndarray) or len(scales) != layers:
        raise GgufError("the GGUF file lacks 'gemma3n.activation_sparsity_scale' in its metadata")
    # A file has how many standard deviations away the cut is, mlx-lm takes the share that is cut.
    shares = [round(0.5 * (1 + math.erf(float(scale) / math.sqrt(2))), 5) for scale in scales]
    laurel = tensors.get("blk.0.laurel_l.weight")
    text = {
        **config,
        "model_type": "gemma3n_text",
        "num_kv_shared_layers": keys.whole("attention.shared_kv_layers", 0, least=0),
        "vocab_size_per_layer_input": _rows(tensors, "per_layer_token_embd.weight", config["vocab_size"]),
        "sliding_window": keys.whole("attention.sliding_window"),
        "rope_local_base_freq": keys.real("rope.freq_base_swa", 10_000.0),
        "rope_theta": keys.real("rope.freq_base", 1_000_000.0),
        "final_logit_softcapping": keys.real("final_logit_softcapping", 30.0),
        "layer_types": _kinds(keys, layers),
        "activation_sparsity_pattern": shares,
        "hidden_size_per_layer_input": keys.whole("embedding_length_per_layer_input"),
        "altup_num_inputs": keys.whole("altup.num_inputs", most=16),
        "altup_active_idx": keys.whole("altup.active_idx", 0, least=0, most=15),
        "altup_coef_clip": 120.0,
        "altup_correct_scale": True,
        "laurel_rank": laurel.rows if laurel is not None else 64,
    }
    return {"text_config": text, "altup_num_inputs": text["altup_num_inputs"]}


def _stacked(name: str, config: Mapping[str, Any]) -> list[tuple[str, TensorPick]]:
    """The projections of a stack, one below the other."""
    width = config["hidden_size"]
    return [
        (f"model.language_model.{name}.{at}", TensorPick.every(at * width, (at + 1) * width).through_experts())
        for at in range(config["altup_num_inputs"] - 1)
    ]


NEWER_GEMMAS: Final[dict[str, Layout]] = {
    "gemma4": Layout(
        "gemma4_text",
        {**_NORMS, **_OWN_INPUTS, **_EXPERTS, "layer_output_scale": "layer_scalar"},
        top={
            "token_embd": "model.embed_tokens",
            "output_norm": "model.norm",
            "output": "lm_head",
            "per_layer_token_embd": "model.embed_tokens_per_layer",
            "per_layer_model_proj": "model.per_layer_model_projection",
            "per_layer_proj_norm": "model.per_layer_projection_norm",
        },
        settings=_gemma4,
        wide_range=True,
        experts=True,
        varied=True,
        bare=frozenset({"layer_output_scale", "ffn_gate_inp_scale", "ffn_down_exps_scale"}),
        joined={"ffn_gate_up_exps": _gate_up},
        alternatives=({"ffn_gate_exps", "ffn_gate_up_exps"}, {"ffn_up_exps", "ffn_gate_up_exps"}),
        absent=_absent4,
    ),
    "gemma3n": Layout(
        "gemma3n",
        {
            **_NORMS,
            **_OWN_INPUTS,
            "altup_correct_coef": "altup.correction_coefs",
            "altup_correct_scale": "altup.correct_output_scale",
            "altup_predict_coef": "altup.prediction_coefs",
            "altup_router": "altup.modality_router",
            "altup_router_norm": "altup.router_norm",
            "laurel_l": "laurel.linear_left",
            "laurel_r": "laurel.linear_right",
            "laurel_post_norm": "laurel.post_laurel_norm",
        },
        top={
            "token_embd": "model.language_model.embed_tokens",
            "output_norm": "model.language_model.norm",
            "per_layer_token_embd": "model.language_model.embed_tokens_per_layer",
            "per_layer_model_proj": "model.language_model.per_layer_model_projection",
            "per_layer_proj_norm": "model.language_model.per_layer_projection_norm",
        },
        joined_top={
            "altup_proj": lambda config: _stacked("altup_projections", config),
            "altup_unembd_proj": lambda config: _stacked("altup_unembed_projections", config),
        },
        settings=_gemma3n,
        prefix="model.language_model.layers",
        wide_range=True,
        bare=frozenset({"altup_correct_scale"}),
    ),
}
