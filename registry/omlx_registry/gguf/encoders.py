"""Encoders: the parts of a multimodal model that read images or audio, beside the text model in a GGUF file; pure."""

from __future__ import annotations

from typing import Final

_PREFIXES: Final = {"v.": "images", "mm.": "images", "a.": "audio"}
"""Prefixes of the names of their tensors."""


def encodes(name: str) -> str:
    """The encoder of a tensor, "images" or "audio"; "" for the text model."""
    return next((kind for start, kind in _PREFIXES.items() if name.startswith(start)), "")


def without_encoder(kind: str) -> str:
    """The note for a model without its encoder of this kind."""
    return (
        f"its encoder for {kind} cannot be converted from GGUF: the model takes text only; "
        "its MLX repository has all of it (`omlx pull`)"
    )
