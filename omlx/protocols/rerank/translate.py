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
    documents = [text for text in texts if text is not None]
    if len(documents) < len(texts):
        raise HTTPError(400, 'documents must be a list of texts, or of objects like {"text": "..."}')
    return documents


def check(body: wire.RerankRequest, capabilities: Sequence[str]) -> None:
    """Raises HTTPError."""
    if "rerank" not in capabilities:
        raise HTTPError(400, f'"{body.model}" does not support rerank')
    if body.top_n is not None and body.top_n < 1:
        raise HTTPError(400, "top_n must be at least 1")


def answer(
    body: wire.RerankRequest, documents: Sequence[str], scores: Sequence[float], tokens: int
) -> wire.RerankResponse:
    """The best documents first; of equals, the earlier one."""
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n]
    results = [
        wire.RerankResult(
            index=index,
            # The values are float32: nine digits say all of them.
            relevance_score=float(f"{scores[index]:.9g}"),
            document=wire.RerankDocument(documents[index]) if body.return_documents else None,
        )
        for index in order
    ]
    usage = wire.RerankUsage(tokens, tokens)
    return wire.RerankResponse(id=f"rerank-{uuid.uuid4().hex}", model=body.model, results=results, usage=usage)


def _text(value: Any) -> str | None:
    if isinstance(value, dict):
        value = value.get("text")
    return value if isinstance(value, str) else None
