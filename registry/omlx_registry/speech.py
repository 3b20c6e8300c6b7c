"""Speech-to-text models: detection and checks of their configurations, in both published layouts of Whisper. Pure.

MLX conversions use `n_audio_state`, Hugging Face uses `d_model`. Networks are built from these dimensions before any
weight is read, so each has a bound, and a dimension of a tensor must equal its size.
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
"""MLX's name of each dimension: Hugging Face's name and the largest value."""
_CONTEXT: Final = 1500
"""Audio positions of 30 seconds. Whisper's windows need exactly this number."""


def is_speech(config: Mapping[str, Any]) -> bool:
    """Whether it is a speech-to-text model that oMLX supports."""
    architectures = config.get("architectures")
    return config.get("model_type") == WHISPER or (isinstance(architectures, list) and _ARCHITECTURE in architectures)


def check_speech(config: Mapping[str, Any], tensors: Iterable[TensorHeader]) -> None:
    """Raises InvalidModel if dimensions are missing, out of bounds or do not match the weights."""
    published = "d_model" in config or "encoder_layers" in config
    figures: dict[str, int] = {}
    for name, (other, most) in _NAMES.items():
        key = other if published else name
        value = config.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise InvalidModel(f"config.json: {key} of a Whisper model must be a number from 1 to {most:,}")
        figures[name] = value
    if figures["n_audio_ctx"] != _CONTEXT:
        raise InvalidModel(f"config.json: Whisper needs {_CONTEXT} audio positions, not {figures['n_audio_ctx']:,}")
    for part in ("audio", "text"):
        state, heads = figures[f"n_{part}_state"], figures[f"n_{part}_head"]
        if state % heads or state % 2 or state < 4:
            raise InvalidModel(f"config.json: a width of {state:,} cannot be divided over {heads:,} heads")
    for tensor in tensors:
        # Quantization never packs the first dimension of a position table.
        table = tensor.name.endswith(("decoder.positional_embedding", "decoder.embed_positions.weight"))
        if table and tensor.shape and tensor.shape[0] != figures["n_text_ctx"]:
            raise InvalidModel(
                f"config.json does not match the weights: it states {figures['n_text_ctx']:,} text positions, but "
                f"they have {tensor.shape[0]:,}"
            )
