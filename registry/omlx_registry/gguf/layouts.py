"""Layouts of text generators: see `layout`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from omlx_registry.gguf.container import GgufError, GgufTensor
from omlx_registry.gguf.encoder_layouts import ENCODERS
from omlx_registry.gguf.gemma import NEWER_GEMMAS
from omlx_registry.gguf.keys import GgufKeys
from omlx_registry.gguf.latent import LATENT_PARTS, absent_parts, latent_settings
from omlx_registry.gguf.layout import ATTENTION, COMMON, GEMMA_NORMS, QK_NORMS, Config, Layout, experts
from omlx_registry.gguf.linear_attention import LINEAR_ATTENTION
from omlx_registry.gguf.mamba import STATE_SPACE
from omlx_registry.gguf.picks import TensorPick


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


def _gpt_oss(
    keys: GgufKeys,
    config: Mapping[str, Any],
    tensors: Mapping[str, GgufTensor],
    width: str = "expert_feed_forward_length",
) -> Config:
    layers = config["num_hidden_layers"]
    return {
        "num_local_experts": keys.whole("expert_count"),
        "num_experts_per_tok": keys.whole("expert_used_count"),
        "intermediate_size": keys.whole(width),
        "sliding_window": keys.whole("attention.sliding_window", 128),
        "layer_types": ["full_attention" if layer % 2 else "sliding_attention" for layer in range(layers)],
        "attention_bias": True,
    }


def _gptoss(keys: GgufKeys, config: Mapping[str, Any], tensors: Mapping[str, GgufTensor]) -> Config:
    # The width of its experts is under another name, and the scaling of its positions has no kind.
    found = _gpt_oss(keys, config, tensors, width="feed_forward_length")
    if keys.get("rope.scaling.factor"):
        found["rope_scaling"] = {
            "rope_type": "yarn",
            "type": "yarn",
            "factor": keys.real("rope.scaling.factor"),
            "original_max_position_embeddings": keys.whole("rope.scaling.original_context_length", 4096),
        }
    return found


def _ollama_gpt_oss(layout: Layout) -> Layout:
    """gpt-oss as Ollama's own converter writes it."""

    def heads(config: Mapping[str, Any]) -> list[tuple[str, TensorPick]]:
        query = config["num_attention_heads"] * config["head_dim"]
        key = query + config["num_key_value_heads"] * config["head_dim"]
        end = key + config["num_key_value_heads"] * config["head_dim"]
        picks = {"q": TensorPick.every(0, query), "k": TensorPick.every(query, key), "v": TensorPick.every(key, end)}
        return [(f"self_attn.{name}_proj", pick) for name, pick in picks.items()]

    def gate_up(config: Mapping[str, Any]) -> list[tuple[str, TensorPick]]:
        rows = 2 * config["intermediate_size"]
        return [
            ("mlp.experts.gate_proj", TensorPick.every(0, rows, 2)),
            ("mlp.experts.up_proj", TensorPick.every(1, rows, 2)),
        ]

    other = {"attn_out": "attn_output", "ffn_norm": "post_attention_norm"}
    return replace(
        layout,
        parts={**layout.parts, **{name: layout.parts[part] for name, part in other.items()}},
        settings=_gptoss,
        joined={"attn_qkv": heads, "ffn_gate_up_exps": gate_up},
        alternatives=(
            {"attn_output", "attn_out"},
            {"post_attention_norm", "ffn_norm"},
            {"attn_q", "attn_qkv"}, {"attn_k", "attn_qkv"}, {"attn_v", "attn_qkv"},
            {"ffn_gate_exps", "ffn_gate_up_exps"}, {"ffn_up_exps", "ffn_gate_up_exps"},
        ),
    )  # fmt: skip


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


_QWEN3MOE: Final = {**ATTENTION, **QK_NORMS, **experts("mlp.gate", "mlp.switch_mlp")}
_GEMMA2: Final = {**COMMON, **GEMMA_NORMS}

GENERATORS: Final[dict[str, Layout]] = {
    "llama": Layout("llama", COMMON, settings=_llama, interleaved=True),
    "qwen2": Layout("qwen2", COMMON),
    "qwen2moe": Layout(
        "qwen2_moe",
        {
            **ATTENTION,
            **experts("mlp.gate", "mlp.switch_mlp"),
            "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
            "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
            "ffn_up_shexp": "mlp.shared_expert.up_proj",
            "ffn_down_shexp": "mlp.shared_expert.down_proj",
        },
        settings=_qwen2moe,
        experts=True,
    ),
    "qwen3": Layout("qwen3", {**COMMON, **QK_NORMS}),
    "qwen3moe": Layout("qwen3_moe", _QWEN3MOE, settings=_qwen3moe, experts=True),
    # The text of Qwen3-VL is Qwen3: positions of text are the same in all three of its dimensions.
    "qwen3vl": Layout("qwen3", {**COMMON, **QK_NORMS}),
    "qwen3vlmoe": Layout("qwen3_moe", _QWEN3MOE, settings=_qwen3moe, experts=True),
    "gemma": Layout("gemma", COMMON, settings=_gemma, norms_plus_one=True, wide_range=True),
    "gemma2": Layout("gemma2", _GEMMA2, settings=_gemma2, norms_plus_one=True, wide_range=True),
    "gemma3": Layout("gemma3_text", {**_GEMMA2, **QK_NORMS}, settings=_gemma3, norms_plus_one=True, wide_range=True),
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
            **{part: path for part, path in ATTENTION.items() if part != "ffn_norm"},
            "post_attention_norm": "post_attention_layernorm",
            "attn_sinks": "self_attn.sinks",
            **experts("mlp.router", "mlp.experts"),
        },
        settings=_gpt_oss,
        experts=True,
        wide_range=True,
        bare=frozenset({"attn_sinks"}),
    ),
    "mistral3": Layout("ministral3", COMMON, settings=_mistral3, interleaved=True),
    "granite": Layout("granite", COMMON, settings=_granite, interleaved=True),
    "granitemoe": Layout(
        "granitemoe",
        {**ATTENTION, **experts("block_sparse_moe.router.layer", "block_sparse_moe.switch_mlp")},
        settings=_granitemoe,
        interleaved=True,
        experts=True,
    ),
    "glm4": Layout(
        "glm4",
        {
            **ATTENTION,
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
            **{part: path for part, path in COMMON.items() if not part.endswith("norm")},
            **QK_NORMS,
            "post_attention_norm": "post_attention_layernorm",
            "post_ffw_norm": "post_feedforward_layernorm",
        },
        settings=_olmo2,
    ),
    "smollm3": Layout("smollm3", COMMON, settings=_smollm3, interleaved=True),
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
        {part: path for part, path in COMMON.items() if part != "ffn_norm"},
        settings=_cohere2,
    ),
}
LAYOUTS: Final = (
    GENERATORS
    | {"gptoss": _ollama_gpt_oss(GENERATORS["gpt-oss"])}
    | ENCODERS
    | LINEAR_ATTENTION
    | NEWER_GEMMAS
    | STATE_SPACE
)
SUPPORTED: Final = tuple(sorted(LAYOUTS))
