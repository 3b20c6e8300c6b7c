"""The dialect of reranking: what clients send, and scores as they expect them back."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from omlx.protocols.http_error import HTTPError
from omlx.protocols.rerank import wire as wire


def read_query(value: Any) -> str:
    """Raises HTTPError."""
    text = _text(value)
    if not text:
        raise HTTPError(400, "query is required")
    return text


def read_documents(value: Any) -> list[str]:
    """Raises HTTPError."""
    if value is None or value == []:
        raise HTTPError(400, "documents is required: a list with at least one text")
    texts = [_text(item) for item in value] if isinstance(value, list) else [None]
    found = [text for text in texts if text is not None]
    if len(found) < len(texts):
        raise HTTPError(400, 'documents must be a list of texts, or of objects like {"text": "..."}')
    return found


def check(asked: wire.RerankRequest, capabilities: Sequence[str]) -> None:
    """Raises HTTPError."""
    if "rerank" not in capabilities:
        raise HTTPError(400, f'"{asked.model}" does not support rerank')
    if asked.top_n is not None and asked.top_n < 1:
        raise HTTPError(400, "top_n must be at least 1")


def answer(
    asked: wire.RerankRequest, documents: Sequence[str], scores: Sequence[float], tokens: int
) -> wire.RerankResponse:
    """The best documents first; of equals, the earlier one."""
    order = sorted(range(len(scores)), key=lambda at: -scores[at])[: asked.top_n]
    results = [
        wire.RerankResult(
            index=at,
            # The values are float32: nine digits say all of them.
            relevance_score=float(f"{scores[at]:.9g}"),
            document=wire.RerankDocument(documents[at]) if asked.return_documents else None,
        )
        for at in order
    ]
    usage = wire.RerankUsage(tokens, tokens)
    return wire.RerankResponse(id=f"rerank-{uuid.uuid4().hex}", model=asked.model, results=results, usage=usage)


def _text(value: Any) -> str | None:
    if isinstance(value, dict):
        value = value.get("text")
    return value if isinstance(value, str) else None
