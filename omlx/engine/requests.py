"""What the parts of the engine ask of it about its requests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from omlx.engine.grammar_text import GrammarError
from omlx.engine.sequence import EngineError, Output, Sequence
from omlx.messages.request import FailureKind


class Requests(Protocol):
    """The engine, as its parts see it: they find faults and ends, it knows where a sequence is."""

    def find(self, ids: list[int]) -> list[Sequence]:
        """Those of these sequences that are still there, in whatever phase."""

    def forget(self, ids: set[int]) -> None:
        """Remove sequences from wherever they are."""

    def restart(self, sequence: Sequence) -> None:
        """Take a sequence out of its batch, if it is in any, and compute it again from all its tokens."""

    def fail(self, sequences: list[Sequence], error: Exception) -> list[Output]:
        """End sequences with an error."""

    def fail_forward(self, sequences: list[Sequence], error: Exception) -> list[Output]:
        """As `fail`, where a forward has raised: several ranks cannot go on then."""


def unusable(error: GrammarError) -> tuple[FailureKind, str]:
    """The failure of a request whose grammar cannot be followed."""
    return "invalid", f"the format cannot be used: {error}"


@contextmanager
def grammar_errors() -> Iterator[None]:
    """Turns the errors of a grammar into EngineError."""
    try:
        yield
    except GrammarError as error:
        raise EngineError(*unusable(error)) from error
