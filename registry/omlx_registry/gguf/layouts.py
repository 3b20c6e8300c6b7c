"""Layouts: what the tensors of each architecture in GGUF files are called in mlx-lm, and how its settings are named.

A converter to GGUF renames tensors and changes some: which ones stands in the `Layout` of the architecture, and what
it says is undone by the importer. Settings that a file does not carry, because llama.cpp has them in its code, are
filled in here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from omlx_registry.gguf.container import GgufError, GgufTensor
from omlx_registry.gguf.keys import GgufKeys
from omlx_registry.gguf.latent import LATENT_PARTS, absent_parts, latent_settings

Config = dict[str, Any]
Settings = Callable[[GgufKeys, Mapping[str, Any], Mapping[str, GgufTensor]], Config]
"""What the architecture adds to config.json, from the metadata, the common part of config.json and the tensors."""


def _nothing(keys: GgufKeys, config: Mapping[str, Any], tensors: Mapping[str, GgufTensor]) -> Config:
    return {}


_TOP: Final[Mapping[str, str]] = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}


@dataclass(frozen=True, slots=True)
class Layout:
    """An architecture: `parts` maps names behind `blk.N.` to module paths behind `model.layers.N.`."""

    model_type: str
    parts: Mapping[str, str]
    top: Mapping[str, str] = field(default_factory=lambda: _TOP)
    settings: Settings = _nothing
    interleaved: bool = False
    """Rows of q and k are interleaved per head (ggml rotates neighbouring pairs); put back into halves."""
    norms_plus_one: bool = False
    """Norms are stored as 1 + w, and MLX adds the 1 itself."""
    wide_range: bool = False
    """Activations exceed float16's range, so 16-bit weights must be bfloat16."""
    experts: bool = False
    in_attention: frozenset[str] = frozenset()
    """Parts that only layers with attention have (`full_attn_idxs` of the settings)."""
    elsewhere: frozenset[str] = frozenset()
    """Parts that only the other layers have."""
    bare: frozenset[str] = frozenset()
    """Parts that are parameters of their own in MLX: no `.weight` behind the path."""
    final_norm: str = "output_norm"
    absent: Callable[[int, Mapping[str, Any]], frozenset[str]] = lambda layer, config: frozenset()
    """Parts that a layer need not have, where it is told otherwise than by attention."""

    def needs(self, layer: int, config: Mapping[str, Any]) -> list[str]:
        """The parts that a layer must have."""
        if absent := self.absent(layer, config):
            return [part for part in self.parts if part not in absent]
        attention = config.get("full_attn_idxs")
        if attention is None:
            return [*self.parts]
        absent = self.elsewhere if layer in attention else self.in_attention
        return [part for part in self.parts if part not in absent]


_ATTENTION: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
}
_MLP: Final = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_COMMON: Final = {**_ATTENTION, **_MLP}
_QK_NORMS: Final = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_GEMMA_NORMS: Final = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def _experts(router: str, path: str) -> dict[str, str]:
    return {"ffn_gate_inp": router} | {f"ffn_{name}_exps": f"{path}.{name}_proj" for name in ("gate", "up", "down")}


def _llama(keys: GgufKeys, config: Mapping[str, Any], tensors: Mapping[str, GgufTensor]) -> Config:
    return {
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in tensors,
    }


def _gemma(keys: GgufKeys, config: Mapping[str, Any], tensors: Mapping[str, GgufTensor]) -> Config:
    return {"hidden_act": "gelu_pytorch_tanh"}


def _gemma2(keys: GgufKeys, config: Mapping[str, Any], tensors: Mapping[str, GgufTensor]) -> Config:
    # Not in the file, the same for all sizes but one: the 27B scales by its width per head.
    is_27b = config["num_hidden_layers"] == 46
    return {
        "query_pre_attn_scalar": config["hidden_size"] // config["num_attention_heads"]
        if is_27b
        else config["head_dim"],
        "attn_logit_softcapping": keys.real("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": keys.real("final_logit_softcapping", 30.0),
        "sliding_window": keys.whole("attention.sliding_window", 4096),
        "hidden_act": "gelu_pytorch_tanh",
    }


def _gemma3(keys: GgufKeys, config: Mapping[str, Any], tensors: Mapping[str, GgufTensor]) -> Config:
    head_dim = config["head_dim"]
    is_27b = config["num_hidden_layers"] == 62
    return {
        "query_pre_attn_scalar": config["hidden_size"] // config["num_attention_heads"] if is_27b else head_dim,
        "sliding_window": keys.whole("attention.sliding_window", 512),
        "sliding_window_pattern": 6,
        "rope_local_base_freq": keys.real("rope.freq_base_swa", 10_000.0),
        "rope_theta": keys.real("rope.freq_base", 1_000_000.0),
        "hidden_act": "gelu_pytorch_tanh",
    }


def _qwen2moe(keys: GgufKeys, config: Mapping[str, Any], tensors: Mapping[str, GgufTensor]) -> Config:
    return {
        "num_experts": keys.whole("expert_count"),
        "num_experts_per_tok": keys.whole("expert_used_count"),
        "moe_intermediate_size": keys.whole("expert_feed_forward_length"),
        "shared_expert_intermediate_size": keys.whole("expert_shared_feed_forward_length"),
        "norm_topk_prob": False,
    }


def _qwen3moe(keys: GgufKeys, config: Mapping[str, Any], tensors: Mapping[str, GgufTensor]) -> Config:
    return {
        "num_experts": keys.whole("expert_count"),
        "num_experts_per_tok": keys.whole("expert_used_count"),
        "moe_intermediate_size": keys.whole("expert_feed_forward_length"),
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _phi3(keys: GgufKeys, config: Mapping[str, Any], tensors: Mapping[str, GgufTensor]) -> Config:
    # Its heads share the hidden size evenly, whatever a file may say.
    head_dim, rest = divmod(config["hidden_size"], config["num_attention_heads"])
    if rest or not head_dim:
        raise GgufError("the GGUF file's hidden size does not divide into its number of heads")
    return {
        "head_dim": head_dim,
        "partial_rotary_factor": keys.whole("rope.dimension_count", head_dim) / head_dim,
        "original_max_position_embeddings": keys.whole(
            "rope.scaling.original_context_length", config["max_position_embeddings"]
        ),
    }


def _gpt_oss(keys: GgufKeys, config: Mapping[str, Any], tensors: Mapping[str, GgufTensor]) -> Config:
    layers = config["num_hidden_layers"]
    return {
        "num_local_experts": keys.whole("expert_count"),
        "num_experts_per_tok": keys.whole("expert_used_count"),
        "intermediate_size": keys.whole("expert_feed_forward_length"),
        "sliding_window": keys.whole("attention.sliding_window", 128),
        "layer_types": ["full_attention" if layer % 2 else "sliding_attention" for layer in range(layers)],
        "attention_bias": True,
    }


def _mistral3(keys: GgufKeys, config: Mapping[str, Any], tensors: Mapping[str, GgufTensor]) -> Config:
    original = keys.whole("rope.scaling.original_context_length", config["max_position_embeddings"])
    rope: Config = {
        "rope_theta": config["rope_theta"],
        "original_max_position_embeddings": original,
        # Queries far behind the original context are scaled up; without the key they are not.
        "llama_4_scaling_beta": keys.real("attention.temperature_scale", 0.0),
    }
    if keys.get("rope.scaling.type") == "yarn":
        # llama.cpp takes the factor that yarn puts on q and k back out of it, as these two together do.
        factor = keys.real("rope.scaling.factor")
        rope |= {"rope_type": "yarn", "factor": factor, "mscale": 1.0, "mscale_all_dim": 1.0}
        rope |= {"beta_fast": keys.real("rope.scaling.yarn_beta_fast", 32.0)}
        rope |= {"beta_slow": keys.real("rope.scaling.yarn_beta_slow", 1.0)}
    return {"rope_parameters": rope}


def _granite(keys: GgufKeys, config: Mapping[str, Any], tensors: Mapping[str, GgufTensor]) -> Config:
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    scale = keys.real("attention.scale", 0.0)
    return _llama(keys, config, tensors) | {
        "attention_multiplier": scale or head_dim**-0.5,
        "embedding_multiplier": keys.real("embedding_scale", 1.0),
        "residual_multiplier": keys.real("residual_scale", 1.0),
        "logits_scaling": keys.real("logit_scale", 1.0),
    }


def _granitemoe(keys: GgufKeys, config: Mapping[str, Any], tensors: Mapping[str, GgufTensor]) -> Config:
    return _granite(keys, config, tensors) | {
        "num_local_experts": keys.whole("expert_count"),
        "num_experts_per_tok": keys.whole("expert_used_count"),
    }


def _glm4(keys: GgufKeys, config: Mapping[str, Any], tensors: Mapping[str, GgufTensor]) -> Config:
    head_dim = config["head_dim"]
    return {
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "partial_rotary_factor": keys.whole("rope.dimension_count", head_dim) / head_dim,
    }


def _olmo2(keys: GgufKeys, config: Mapping[str, Any], tensors: Mapping[str, GgufTensor]) -> Config:
    window = keys.get("attention.sliding_window")
    if window is None:
        return {}
    # A window makes it OLMo 3: three layers with it, one without.
    layers = config["num_hidden_layers"]
    slides = keys.per_layer("attention.sliding_window_pattern", layers)
    slides = slides or [int((layer + 1) % 4 != 0) for layer in range(layers)]
    return {
        "model_type": "olmo3",
        "sliding_window": keys.whole("attention.sliding_window"),
        "layer_types": ["sliding_attention" if slide else "full_attention" for slide in slides],
    }


def _smollm3(keys: GgufKeys, config: Mapping[str, Any], tensors: Mapping[str, GgufTensor]) -> Config:
    return _llama(keys, config, tensors) | {"no_rope_layer_interval": 4}


def _lfm2(keys: GgufKeys, config: Mapping[str, Any], tensors: Mapping[str, GgufTensor]) -> Config:
    layers = config["num_hidden_layers"]
    heads = keys.per_layer("attention.head_count_kv", layers)
    attention = [layer for layer in range(layers) if heads is None or heads[layer]]
    if not attention:
        raise GgufError("the GGUF file's metadata 'lfm2.attention.head_count_kv' has an unusable value")
    return {
        "num_key_value_heads": max(heads) if heads else config["num_key_value_heads"],
        "norm_eps": config["rms_norm_eps"],
        "conv_bias": False,
        "conv_L_cache": keys.whole("shortconv.l_cache", most=64),
        "block_dim": config["hidden_size"],
        "block_ff_dim": config["intermediate_size"],
        "block_multiple_of": 1,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "full_attn_idxs": attention,
    }


def _cohere2(keys: GgufKeys, config: Mapping[str, Any], tensors: Mapping[str, GgufTensor]) -> Config:
    return {
        "layer_norm_eps": keys.real("attention.layer_norm_epsilon"),
        "logit_scale": keys.real("logit_scale"),
        "sliding_window": keys.whole("attention.sliding_window"),
        "sliding_window_pattern": 4,
    }


_QWEN3MOE: Final = {**_ATTENTION, **_QK_NORMS, **_experts("mlp.gate", "mlp.switch_mlp")}
_GEMMA2: Final = {**_COMMON, **_GEMMA_NORMS}

LAYOUTS: Final[dict[str, Layout]] = {
    "llama": Layout("llama", _COMMON, settings=_llama, interleaved=True),
    "qwen2": Layout("qwen2", _COMMON),
    "qwen2moe": Layout(
        "qwen2_moe",
        {
            **_ATTENTION,
            **_experts("mlp.gate", "mlp.switch_mlp"),
            "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
            "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
            "ffn_up_shexp": "mlp.shared_expert.up_proj",
            "ffn_down_shexp": "mlp.shared_expert.down_proj",
        },
        settings=_qwen2moe,
        experts=True,
    ),
    "qwen3": Layout("qwen3", {**_COMMON, **_QK_NORMS}),
    "qwen3moe": Layout("qwen3_moe", _QWEN3MOE, settings=_qwen3moe, experts=True),
    # The text of Qwen3-VL is Qwen3: positions of text are the same in all three of its dimensions.
    "qwen3vl": Layout("qwen3", {**_COMMON, **_QK_NORMS}),
    "qwen3vlmoe": Layout("qwen3_moe", _QWEN3MOE, settings=_qwen3moe, experts=True),
    "gemma": Layout("gemma", _COMMON, settings=_gemma, norms_plus_one=True, wide_range=True),
    "gemma2": Layout("gemma2", _GEMMA2, settings=_gemma2, norms_plus_one=True, wide_range=True),
    "gemma3": Layout("gemma3_text", {**_GEMMA2, **_QK_NORMS}, settings=_gemma3, norms_plus_one=True, wide_range=True),
    "phi3": Layout(
        "phi3",
        {
            "attn_norm": "input_layernorm",
            "attn_qkv": "self_attn.qkv_proj",
            "attn_output": "self_attn.o_proj",
            "ffn_norm": "post_attention_layernorm",
            "ffn_up": "mlp.gate_up_proj",
            "ffn_down": "mlp.down_proj",
        },
        settings=_phi3,
    ),
    "gpt-oss": Layout(
        "gpt_oss",
        {
            **{part: path for part, path in _ATTENTION.items() if part != "ffn_norm"},
            "post_attention_norm": "post_attention_layernorm",
            "attn_sinks": "self_attn.sinks",
            **_experts("mlp.router", "mlp.experts"),
        },
        settings=_gpt_oss,
        experts=True,
        wide_range=True,
        bare=frozenset({"attn_sinks"}),
    ),
    "mistral3": Layout("ministral3", _COMMON, settings=_mistral3, interleaved=True),
    "granite": Layout("granite", _COMMON, settings=_granite, interleaved=True),
    "granitemoe": Layout(
        "granitemoe",
        {**_ATTENTION, **_experts("block_sparse_moe.router.layer", "block_sparse_moe.switch_mlp")},
        settings=_granitemoe,
        interleaved=True,
        experts=True,
    ),
    "glm4": Layout(
        "glm4",
        {
            **_ATTENTION,
            "post_attention_norm": "post_self_attn_layernorm",
            "post_ffw_norm": "post_mlp_layernorm",
            "ffn_up": "mlp.gate_up_proj",
            "ffn_down": "mlp.down_proj",
        },
        settings=_glm4,
    ),
    "olmo2": Layout(
        "olmo2",
        {
            **{part: path for part, path in _COMMON.items() if not part.endswith("norm")},
            **_QK_NORMS,
            "post_attention_norm": "post_attention_layernorm",
            "post_ffw_norm": "post_feedforward_layernorm",
        },
        settings=_olmo2,
    ),
    "smollm3": Layout("smollm3", _COMMON, settings=_smollm3, interleaved=True),
    "lfm2": Layout(
        "lfm2",
        {
            "attn_norm": "operator_norm",
            "ffn_norm": "ffn_norm",
            "attn_q": "self_attn.q_proj",
            "attn_k": "self_attn.k_proj",
            "attn_v": "self_attn.v_proj",
            "attn_output": "self_attn.out_proj",
            "attn_q_norm": "self_attn.q_layernorm",
            "attn_k_norm": "self_attn.k_layernorm",
            "shortconv.conv": "conv.conv",
            "shortconv.in_proj": "conv.in_proj",
            "shortconv.out_proj": "conv.out_proj",
            "ffn_gate": "feed_forward.w1",
            "ffn_up": "feed_forward.w3",
            "ffn_down": "feed_forward.w2",
        },
        top={"token_embd": "model.embed_tokens", "token_embd_norm": "model.embedding_norm"},
        settings=_lfm2,
        in_attention=frozenset({"attn_q", "attn_k", "attn_v", "attn_output", "attn_q_norm", "attn_k_norm"}),
        elsewhere=frozenset({"shortconv.conv", "shortconv.in_proj", "shortconv.out_proj"}),
        final_norm="token_embd_norm",
    ),
    "deepseek2": Layout(
        "deepseek_v3",
        LATENT_PARTS,
        settings=latent_settings,
        experts=True,
        wide_range=True,
        bare=frozenset({"exp_probs_b", "ffn_gate_inp"}),
        absent=absent_parts,
    ),
    "cohere2": Layout(
        "cohere2",
        {part: path for part, path in _COMMON.items() if part != "ffn_norm"},
        settings=_cohere2,
    ),
}
SUPPORTED: Final = tuple(sorted(LAYOUTS))
