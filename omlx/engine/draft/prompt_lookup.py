"""Guesses taken from the text itself: what followed the last time that the newest tokens occurred.

Edits, summaries and code repeat long passages of their prompts. A guess costs no forward pass, only the time to check
it; the controller measures whether that makes the reply faster.
"""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from omlx.engine.draft.drafter import Position

LEAST_MATCH, MOST_MATCH = 2, 8
"""Tokens that must agree before a guess, and those that are compared to choose among several places."""
_CHUNK = 65_536
"""Tokens copied per step: many more than a step makes, and no more than a few milliseconds."""

Tokens = npt.NDArray[np.int32]


class PromptLookup:
    """A drafter without a model. Holds a copy of the sequence's tokens, 4 bytes each."""

    guess_s = 0.0
    by_text = True

    def __init__(self) -> None:
        self._tokens: Tokens = np.empty(1024, np.int32)
        self._held = 0

    def follow(self, tokens: list[int]) -> None:
        self._held = 0

    def catch_up(self, tokens: list[int]) -> bool:
        self._append(tokens[self._held : self._held + _CHUNK])
        return self._held == len(tokens)

    def guess(self, position: Position, count: int) -> mx.array | None:
        before = self._held
        self._append(position.ahead)
        # The newest token may not be known yet: then it is guessed too, and left out.
        guesses = continuation(self._tokens[: self._held], count + position.unknown)[int(position.unknown) :]
        self._held = before
        return mx.array(guesses) if guesses.size else None

    def keep(self, tokens: list[int], count: int) -> None:
        """The row's record has them."""

    def forget(self) -> None:
        self._held = 0

    def _append(self, tokens: list[int]) -> None:
        end = self._held + len(tokens)
        if end > len(self._tokens):
            grown = np.empty(2 * end, np.int32)
            grown[: self._held] = self._tokens[: self._held]
            self._tokens = grown
        self._tokens[self._held : end] = tokens
        self._held = end


def continuation(tokens: Tokens, count: int) -> Tokens:
    """[k <= count] what followed the earlier place that agrees with the end of `tokens` [n] in most tokens (at least
    `LEAST_MATCH`), the latest of several; empty where there is none.
    """
    last = len(tokens) - 1
    if last < LEAST_MATCH:
        return tokens[:0]
    places = np.flatnonzero(tokens[:last] == tokens[last])
    for back in range(1, MOST_MATCH):
        better = places[places >= back]
        better = better[tokens[better - back] == tokens[last - back]]
        if not better.size:
            if back < LEAST_MATCH:
                return tokens[:0]
            break
        places = better
    start = int(places[-1]) + 1
    return tokens[start : start + count].copy()
