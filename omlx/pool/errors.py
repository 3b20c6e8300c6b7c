"""How the pool says no."""

from __future__ import annotations

from typing import Literal

PoolErrorKind = Literal["busy", "load_failed", "too_large", "crashed", "gone"]
"""`gone`: what the spec stands for was changed or deleted before it was loaded; the name may stand for another now."""

QUEUE_FULL = "server busy, please try again.  maximum pending requests exceeded"
"""Ollama's words, two spaces included."""

GONE = "the model was changed or deleted while the request waited for it"

SHUTTING_DOWN = "the server is shutting down"


class PoolError(Exception):
    """A model could not be provided; `message` is a sentence for the user."""

    def __init__(self, kind: PoolErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
