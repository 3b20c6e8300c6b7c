"""Wire types of reranking, in the shape that Cohere's and Jina's clients share."""

from __future__ import annotations

from typing import Any

import msgspec

from omlx.protocols.common import CommonFields


class RerankRequest(CommonFields, msgspec.Struct, kw_only=True):
    model: str = ""
    query: Any = None
    """A text, or `{"text": …}`."""
    documents: Any = None
    """A list of texts, or of `{"text": …}`."""
    top_n: int | None = None
    """How many results; None: one for each document."""
    return_documents: bool = False


class RerankDocument(msgspec.Struct):
    text: str


class RerankResult(msgspec.Struct, kw_only=True, omit_defaults=True):
    index: int
    """Of the document in the request."""
    relevance_score: float
    """0 to 1."""
    document: RerankDocument | None = None


class RerankUsage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int


class RerankResponse(msgspec.Struct, kw_only=True):
    id: str
    model: str
    object: str = "list"
    results: list[RerankResult]
    """The best first."""
    usage: RerankUsage
