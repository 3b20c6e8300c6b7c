"""Two greedy answers to one prompt: the same, up to rounding?

Other shapes of the same sum round differently, so two tokens that are equally likely may change places, and what
follows differs rightly. What may not happen is that a token is chosen which the other run thought less likely.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from omlx.protocols.ollama.wire import Logprob

TOLERANCE = 0.5
"""Nats. 16-bit arithmetic moves a log probability by up to about 0.2; a damaged cache by several."""


class GreedyAnswer(NamedTuple):
    """Tokens with their log probabilities and likeliest alternatives; counts of tokens of the prompt."""

    tokens: Sequence[Logprob]
    prompt: int
    cached: int

    @property
    def text(self) -> str:
        return "".join(token.token for token in self.tokens)


class LogprobDifference(NamedTuple):
    """`largest` in nats; `problem` is "" where the answers agree."""

    largest: float
    problem: str = ""


def difference(one: GreedyAnswer, other: GreedyAnswer) -> LogprobDifference:
    """Compare token by token up to the first that differ; what stands behind those is not comparable."""
    largest = 0.0
    for position, (left, right) in enumerate(zip(one.tokens, other.tokens, strict=False)):
        if left.token != right.token:
            gap = max(_gap(left, right.token), _gap(right, left.token))
            if gap > TOLERANCE:
                return LogprobDifference(gap, f"token {position} is {right.token!r} instead of {left.token!r}")
            return LogprobDifference(max(largest, gap))
        largest = max(largest, abs(left.logprob - right.logprob))
        if largest > TOLERANCE:
            return LogprobDifference(largest, f"token {position} is {largest:.2f} nats off")
    if len(one.tokens) != len(other.tokens):
        return LogprobDifference(largest, f"{len(other.tokens)} tokens instead of {len(one.tokens)}")
    return LogprobDifference(largest)


def _gap(chosen: Logprob, other: str) -> float:
    """How much less likely the other token was; endless where it is not even among the alternatives."""
    logprobs = (entry.logprob for entry in chosen.top_logprobs if entry.token == other)
    return next((chosen.logprob - logprob for logprob in logprobs), float("inf"))
