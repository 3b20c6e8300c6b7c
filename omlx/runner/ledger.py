"""The *ledger* of a runner: the KV memory its requests have been promised, so that they do not need more than there is.

A request reserves the tokens it is expected to come to, not the most it might: prompt plus answer where the answer
has a limit, plus a usual answer's length where it has none. What does not fit waits until others are done; what can
never fit is told so at once. Pure bookkeeping.
"""

from __future__ import annotations

from omlx.messages.request import Limits

USUAL_ANSWER = 2048
"""Tokens reserved for an answer without a limit of its own."""


def expected_tokens(prompt: int, context: int, limits: Limits) -> int:
    """Tokens of KV a request will probably come to; never more than its context."""
    answer = limits.num_predict if limits.num_predict >= 0 else USUAL_ANSWER
    return min(context, prompt + answer)


class Ledger:
    """`budget` in bytes (0: no limit), `token_bytes` per token of KV."""

    def __init__(self, budget: int, token_bytes: int) -> None:
        self.most_tokens: int | None = None
        """Tokens that all requests together may hold; None: no limit."""
        self._token_bytes = token_bytes
        self._reserved: dict[int, int] = {}
        self.resize(budget)

    def resize(self, budget: int) -> None:
        """Another budget from now on. What is promised stays promised: a smaller one only makes new requests wait."""
        self.most_tokens = budget // self._token_bytes if budget > 0 and self._token_bytes > 0 else None

    @property
    def reserved(self) -> int:
        """Tokens promised now."""
        return sum(self._reserved.values())

    @property
    def reserved_bytes(self) -> int:
        return self.reserved * self._token_bytes

    def can_ever_hold(self, tokens: int) -> bool:
        return self.most_tokens is None or tokens <= self.most_tokens

    def reserve(self, number: int, tokens: int) -> bool:
        """Promise `tokens` to a request, at most all there are; False when too few are free now."""
        if self.most_tokens is not None:
            tokens = min(tokens, self.most_tokens)
            if self.reserved + tokens > self.most_tokens:
                return False
        self._reserved[number] = tokens
        return True

    def release(self, number: int) -> None:
        self._reserved.pop(number, None)
