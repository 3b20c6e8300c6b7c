"""The interface of drafters, which guess the next tokens of a lone sequence."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import mlx.core as mx

from omlx.engine.sequence import Sequence


class Position(NamedTuple):
    """Where a sequence stands when a round begins."""

    row: Sequence
    ahead: list[int]
    """Sampled tokens that are known but not in the row's record yet, in order."""
    newest: mx.array
    """[1] the newest token."""
    unknown: bool
    """The host has not read the newest token, which is then not in `ahead`."""
    sampled: int
    """Tokens sampled so far."""


class Drafter(Protocol):
    """Guesses tokens; the model checks them, so a wrong guess costs time and nothing else."""

    @property
    def guess_s(self) -> float:
        """Expected seconds that one guess takes."""

    @property
    def by_text(self) -> bool:
        """How well it guesses depends on the text, so figures of one sequence do not hold for the next."""

    def follow(self, tokens: list[int]) -> None:
        """From now on guess what comes behind `tokens`, which grow with the reply."""

    def catch_up(self, tokens: list[int]) -> bool:
        """Prefill the tokens that it lacks, a chunk per step; True once few or none are left."""

    def guess(self, position: Position, count: int) -> mx.array | None:
        """[k] at most `count` guesses of the tokens behind the newest; None: it has none."""

    def keep(self, tokens: list[int], count: int) -> None:
        """The token before `count` guesses and those of them that were right; nothing where the row has ended."""

    def forget(self) -> None:
        """Drop what it has read, after an error."""
