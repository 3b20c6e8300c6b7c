"""A *guide* holds one reply to what was asked of it: how long it may think, and the grammar its answer obeys.

The engine tells it every token and asks for a *mask* (the allowed tokens as bits) before the next is sampled. A mask
needs the last token, so a batch with such a row reads its tokens before it samples; a mask takes some 20 µs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from omlx.engine.grammar import GrammarCompiler
from omlx.engine.grammar_text import GrammarError, sentence
from omlx.messages.constraint import Grammar, ThinkLimit

Bits = NDArray[np.uint32]

_IN_FLIGHT = 2
"""Tokens that may be sampled before the host has seen the last one."""


class Guide:
    """Where one reply stands."""

    __slots__ = ("_budget", "_grammar")

    def __init__(self, grammar: _Constraint | None, budget: _Budget | None) -> None:
        self._grammar = grammar
        self._budget = budget

    @property
    def constrains(self) -> bool:
        """The next token cannot be sampled before the last is known."""
        return self._grammar is not None or (self._budget is not None and self._budget.near)

    @property
    def active(self) -> bool:
        """There is a mask now."""
        return self._grammar is not None or (self._budget is not None and bool(self._budget.forced))

    @property
    def choice(self) -> int | None:
        """The token that would let the reply begin outside its grammar. The reply takes it if it wants it most."""
        forced = self._budget is not None and self._budget.forced
        return self._grammar.choice if self._grammar is not None and not forced else None

    @property
    def complete(self) -> bool:
        """True once nothing may follow."""
        return self._grammar is not None and self._grammar.complete

    def accept(self, token: int, text: str) -> None:
        """The reply went on by `token`, whose text is `text`.

        Raises GrammarError where the grammar cannot be followed any further (it grew beyond its limits), ValueError
        where it forbids the token.
        """
        if self._grammar is not None:
            self._grammar.accept(token, text)
        if self._budget is not None:
            self._budget.accept(text)

    def mask_into(self, bits: Bits) -> None:
        """Write the allowed tokens into a row of uint32 words; only end tokens once the grammar is complete."""
        if self._budget is not None and self._budget.forced:
            _only(self._budget.forced[0], bits)
        elif self._grammar is not None:
            self._grammar.mask_into(bits)


def make_guide(
    compiler: GrammarCompiler,
    tokenizer: Any,
    end_tokens: set[int],
    grammar: Grammar | None,
    thinking: ThinkLimit | None,
) -> Guide | None:
    """The guide of a new reply, None where it is free. `tokenizer` is the Rust one. Raises GrammarError."""

    def tokens(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids) if text else []

    constraint = budget = None
    if grammar is not None:
        known = {token for token in end_tokens if token < compiler.words * 32}
        constraint = _Constraint(compiler.matcher(grammar), tokens(grammar.opening), grammar.after, known)
    if thinking is not None:
        budget = _Budget(thinking, tokens(thinking.ending))
    return Guide(constraint, budget) if constraint or budget else None


class _Constraint:
    """The grammar, from where in the reply it holds."""

    __slots__ = ("_end_tokens", "_matched", "_matcher", "_opening", "_seen", "_waits_for")

    def __init__(self, matcher: Any, opening: list[int], after: str, end_tokens: set[int]) -> None:
        self._matcher = matcher
        self._opening = opening
        """Tokens of the text that would make the reply free; [] once that is decided."""
        self._matched = 0
        """How many of them the reply has begun with."""
        self._waits_for = after
        self._seen = ""
        self._end_tokens = end_tokens

    @property
    def choice(self) -> int | None:
        return self._opening[0] if self._opening and not self._matched else None

    @property
    def complete(self) -> bool:
        return not self._opening and not self._waits_for and bool(self._matcher.is_stopped())

    def accept(self, token: int, text: str) -> None:
        if self._opening:
            if token == self._opening[self._matched]:
                self._matched += 1
                if self._matched == len(self._opening):
                    self._opening = []
                return
            self._opening, self._waits_for = [], ""
        if self._waits_for:
            self._seen = (self._seen + text)[-len(self._waits_for) - len(text) :]
            if self._waits_for in self._seen:
                self._waits_for = ""
            return
        if not self._matcher.is_stopped() and not self._matcher.consume_token(token):
            if trouble := self._matcher.get_error():
                raise GrammarError(sentence(trouble))
            raise ValueError("the reply holds a token that its grammar forbids")

    def mask_into(self, bits: Bits) -> None:
        if self._matched and self._opening:
            _only(self._opening[self._matched], bits)
        elif self._waits_for and not self._opening:
            # Free, but it must not end here: the answer is still to come.
            bits[:] = 0xFFFFFFFF
            for token in self._end_tokens:
                bits[token // 32] &= np.uint32(~(1 << token % 32) & 0xFFFFFFFF)
        else:
            self._matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)


class _Budget:
    """Counts the tokens of thinking."""

    __slots__ = ("_ending", "_inside", "_left", "_over", "_seen", "_thinking", "forced")

    def __init__(self, thinking: ThinkLimit, ending: list[int]) -> None:
        self._thinking = thinking
        self._ending = ending
        self._left = thinking.budget
        self._inside = thinking.open
        self._over = False
        """No more thinking can come."""
        self._seen = ""
        self.forced: list[int] = []
        """Tokens that must come next."""
        self._force()

    @property
    def near(self) -> bool:
        """The next tokens may have to be forced."""
        return bool(self.forced) or (not self._over and self._left <= _IN_FLIGHT)

    def accept(self, text: str) -> None:
        if self.forced:
            del self.forced[0]
        elif not self._over:
            self._seen += text
            if self._inside:
                self._left -= 1
                self._look_for_end()
            else:
                self._look_for_start()
            self._force()

    def _look_for_end(self) -> None:
        closing = self._thinking.closing
        if closing in self._seen:
            self._inside, self._over, self._seen = False, not self._thinking.anywhere, ""
        else:
            self._seen = self._seen[-len(closing) :]

    def _look_for_start(self) -> None:
        opening = self._thinking.opening
        if self._thinking.anywhere:
            self._inside = opening in self._seen
            self._seen = self._seen[-len(opening) :]
        else:
            begun = self._seen.lstrip()
            self._inside = begun.startswith(opening)
            self._over = not self._inside and not opening.startswith(begun)
        if self._inside:
            self._seen = ""

    def _force(self) -> None:
        if self._inside and self._left <= 0:
            self.forced, self._over = list(self._ending), True


def _only(token: int, bits: Bits) -> None:
    bits[:] = 0
    bits[token // 32] = np.uint32(1 << token % 32)
