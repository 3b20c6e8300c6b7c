"""Speech-to-text models: which configurations are one, in the two layouts that Whisper is published in. Pure.

MLX conversions say `n_audio_state`, Hugging Face's `d_model`. Networks are built from these figures before a weight is
looked at, so each has a bound, and those that stand for a tensor must be its size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from omlx_registry.errors import InvalidModel
from omlx_registry.weights import TensorHeader

WHISPER: Final = "whisper"
_ARCHITECTURE: Final = "WhisperForConditionalGeneration"
_NAMES: Final = {
    "n_mels": ("num_mel_bins", 256),
    "n_audio_ctx": ("max_source_positions", 1500),
    "n_audio_state": ("d_model", 1 << 14),
    "n_audio_head": ("encoder_attention_heads", 1 << 10),
    "n_audio_layer": ("encoder_layers", 256),
    "n_vocab": ("vocab_size", 1 << 20),
    "n_text_ctx": ("max_target_positions", 1 << 12),
    "n_text_state": ("d_model", 1 << 14),
    "n_text_head": ("decoder_attention_heads", 1 << 10),
    "n_text_layer": ("decoder_layers", 256),
}
"""MLX's name of each figure: Hugging Face's, and the most that is taken."""
_CONTEXT: Final = 1500
"""Positions of the audio: thirty seconds. No other number works with the windows of Whisper."""


def is_speech(config: Mapping[str, Any]) -> bool:
    """The model writes down speech, and oMLX runs it."""
    architectures = config.get("architectures")
    return config.get("model_type") == WHISPER or (isinstance(architectures, list) and _ARCHITECTURE in architectures)


def check_speech(config: Mapping[str, Any], tensors: Iterable[TensorHeader]) -> None:
    """Raises InvalidModel where figures of a speech model are missing, beyond their bounds or not of its weights."""
    published = "d_model" in config or "encoder_layers" in config
    figures: dict[str, int] = {}
    for name, (other, most) in _NAMES.items():
        key = other if published else name
        value = config.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise InvalidModel(f"config.json: {key} of a Whisper model must be a number from 1 to {most:,}")
        figures[name] = value
    if figures["n_audio_ctx"] != _CONTEXT:
        raise InvalidModel(f"config.json: a Whisper model hears {_CONTEXT} positions, not {figures['n_audio_ctx']:,}")
    for part in ("audio", "text"):
        state, heads = figures[f"n_{part}_state"], figures[f"n_{part}_head"]
        if state % heads or state % 2 or state < 4:
            raise InvalidModel(f"config.json: a width of {state:,} cannot be divided over {heads:,} heads")
    for tensor in tensors:
        # Of a table of positions the first dimension is never packed by a quantization.
        table = tensor.name.endswith(("decoder.positional_embedding", "decoder.embed_positions.weight"))
        if table and tensor.shape and tensor.shape[0] != figures["n_text_ctx"]:
            raise InvalidModel(
                f"config.json does not belong to the weights: the text has {figures['n_text_ctx']:,} positions, but "
                f"they have {tensor.shape[0]:,}"
            )
