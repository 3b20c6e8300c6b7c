"""The *context* of a request: the most tokens that its prompt and its reply may have together.

`num_ctx` is what a request asks for (0: nothing), the *default* what it gets then, and a model is *trained* for a
longest context.
"""

from __future__ import annotations

MIN_CONTEXT = 4
"""Tokens. Ollama's floor."""


def effective_context(num_ctx: int, default: int, trained: int) -> int:
    """Tokens of context that a request gets: `num_ctx`, else the default; at most `trained` (0: unknown)."""
    context = num_ctx if num_ctx > 0 else default
    return max(MIN_CONTEXT, min(context, trained) if trained > 0 else context)
