"""How the pool says no."""

from __future__ import annotations

from typing import Literal

PoolErrorKind = Literal["busy", "load_failed", "too_large", "crashed"]

QUEUE_FULL = "server busy, please try again.  maximum pending requests exceeded"
"""Ollama's words, two spaces included."""


class PoolError(Exception):
    """A model could not be provided; `message` is a sentence for the user."""

    def __init__(self, kind: PoolErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
