"""Architecture: what config.json says about a model's shape, under the names Ollama's `model_info` uses. Pure.

Multimodal models keep the language model's numbers in `text_config` (or `llm_config`, ...): looked up there first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from math import isfinite
from typing import Any, Final

import msgspec

_TEXT_SECTIONS: Final = ("text_config", "llm_config", "language_config", "thinker_config")
_FIELDS: Final = (
    ("context_length", ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx",
                        "max_sequence_length", "model_max_length", "max_target_positions",
                        "n_text_ctx")),
    ("embedding_length", ("hidden_size", "n_embd", "d_model", "dim", "n_text_state")),
    ("block_count", ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers",
                     "n_text_layer")),
    ("attention.head_count", ("num_attention_heads", "n_head", "n_heads", "decoder_attention_heads",
                              "n_text_head")),
    ("attention.head_count_kv", ("num_key_value_heads", "n_kv_heads", "num_kv_heads")),
    ("attention.key_length", ("head_dim",)),
    ("attention.layer_norm_rms_epsilon", ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon")),
    ("attention.sliding_window", ("sliding_window",)),
    ("feed_forward_length", ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")),
    ("rope.freq_base", ("rope_theta",)),
    ("expert_count", ("num_local_experts", "num_experts", "n_routed_experts")),
    ("expert_used_count", ("num_experts_per_tok", "num_experts_per_token")),
    ("vocab_size", ("vocab_size", "n_vocab")),
)  # fmt: skip
_IRRELEVANT_TO_KV: Final = frozenset(
    {"_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache", "architectures", "auto_map",
     "eos_token_id", "bos_token_id", "pad_token_id", "initializer_range", "attention_dropout", "hidden_dropout",
     "label2id", "id2label", "task_specific_params", "output_attentions", "output_hidden_states", "return_dict",
     "finetuning_task"}
)  # fmt: skip


class ModelShape(msgspec.Struct, frozen=True):
    """The figures of a model that everybody asks for."""

    family: str
    """`model_type`, e.g. `qwen3`: the prefix of `model_info` keys."""
    context_length: int
    embedding_length: int


def shape_of(config: Mapping[str, Any]) -> ModelShape:
    """Zero and "" where the configuration is silent."""
    context, width = _field(config, "context_length"), _field(config, "embedding_length")
    return ModelShape(
        _family(config), context if isinstance(context, int) else 0, width if isinstance(width, int) else 0
    )


def model_info(config: Mapping[str, Any], parameter_count: int) -> dict[str, Any]:
    """Ollama's `model_info`: `general.architecture`, `general.parameter_count`, `<family>.block_count` ..."""
    family = _family(config)
    info: dict[str, Any] = {"general.architecture": family, "general.parameter_count": parameter_count}
    for name, _ in _FIELDS:
        value = _field(config, name)
        if value is not None:
            info[f"{family}.{name}"] = value
    return info


def projector_info(config: Mapping[str, Any], parameter_count: int) -> dict[str, Any] | None:
    """The vision encoder in the terms of Ollama's `projector_info`; None for a text model."""
    vision = config.get("vision_config")
    if not isinstance(vision, Mapping):
        return None
    info: dict[str, Any] = {
        "general.architecture": "clip",
        "general.parameter_count": parameter_count,
        "clip.has_vision_encoder": True,
    }
    for name, keys in (
        ("embedding_length", ("hidden_size", "embed_dim", "width")),
        ("projection_dim", ("out_hidden_size", "projection_dim")),
        ("block_count", ("num_hidden_layers", "depth", "layers")),
        ("attention.head_count", ("num_attention_heads", "num_heads", "heads")),
        ("image_size", ("image_size",)),
        ("patch_size", ("patch_size",)),
    ):
        value = next((vision[key] for key in keys if _is_number(vision.get(key))), None)
        if value is not None:
            info[f"clip.vision.{name}"] = value
    info.setdefault("clip.vision.projection_dim", shape_of(config).embedding_length)
    return info


def fingerprint(config: Mapping[str, Any], weight_digests: list[str], tokenizer_digests: list[str]) -> str:
    """64 hex: equal for two models exactly when the KV cache of one is right for the other.

    `weight_digests` covers weights and adapters in file order, `tokenizer_digests` what maps text to token ids. Chat
    template, sampling defaults and names do not count; quantization is part of config.json.
    """
    relevant = {key: value for key, value in config.items() if key not in _IRRELEVANT_TO_KV}
    material = {"config": relevant, "weights": weight_digests, "tokenizer": tokenizer_digests}
    return hashlib.sha256(msgspec.json.encode(material, order="deterministic")).hexdigest()


def _family(config: Mapping[str, Any]) -> str:
    own = config.get("model_type")
    if isinstance(own, str) and own:
        return own
    nested = next((section.get("model_type") for section in _sections(config)), None)
    return nested if isinstance(nested, str) else "unknown"


def _field(config: Mapping[str, Any], name: str) -> int | float | None:
    keys = next(keys for field, keys in _FIELDS if field == name)
    for section in (*_sections(config), config):
        for key in keys:
            value = section.get(key)
            if _is_number(value):
                return value
    if name == "rope.freq_base":
        # Newer configurations keep the base inside rope_parameters.
        for section in (*_sections(config), config):
            rope = section.get("rope_parameters")
            if isinstance(rope, Mapping) and _is_number(rope.get("rope_theta")):
                return rope["rope_theta"]  # type: ignore[no-any-return]
    return None


def _sections(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    sections = [config[key] for key in _TEXT_SECTIONS if isinstance(config.get(key), Mapping)]
    # Omni models nest once more: thinker_config.text_config.
    return [inner for section in sections for inner in (*_sections(section), section)]


def _is_number(value: object) -> bool:
    """Infinity and NaN, which Python writes into JSON, are none: answers of the API cannot hold them."""
    return (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and isfinite(value))
