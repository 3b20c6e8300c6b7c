"""Structured output: a *grammar* says which tokens may come next, and a *mask* is that answer as bits.

`Grammar` is the request; `GrammarCompiler` belongs to a model (the tokenizer's trie takes about a second to build, so
it is built on first use); `GrammarState` belongs to a sequence. The mask for the next token needs the last one, so a
batch with a constrained row reads its tokens before it samples; llguidance takes some 20 µs for a mask.
"""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint32]


class Grammar(msgspec.Struct, frozen=True, kw_only=True):
    """What the reply must look like."""

    kind: Literal["json", "schema", "regex", "lark", "gbnf"]
    source: str | dict[str, Any] = ""
    """The schema (object or text), regular expression, Lark or GBNF text; unused for "json" (any object)."""
    after: str = ""
    """The grammar begins once the reply contains this text (say, the end of thinking); "": at once."""


class GrammarError(ValueError):
    """The grammar cannot be used; the message says why."""


class GrammarState:
    """Where one reply stands in its grammar."""

    __slots__ = ("_matcher", "_seen", "_waits_for")

    def __init__(self, matcher: Any, after: str) -> None:
        self._matcher = matcher
        self._waits_for = after
        self._seen = ""

    @property
    def active(self) -> bool:
        """False while the reply is still free (before `after`)."""
        return not self._waits_for

    @property
    def complete(self) -> bool:
        """True once nothing may follow."""
        return self.active and bool(self._matcher.is_stopped())

    def accept(self, token: int, text: str) -> None:
        """The reply went on by `token`, whose text is `text`. ValueError where the grammar forbids it."""
        if self._waits_for:
            self._seen = (self._seen + text)[-len(self._waits_for) - len(text) :]
            if self._waits_for in self._seen:
                self._waits_for = ""
            return
        if not self._matcher.is_stopped() and not self._matcher.consume_token(token):
            raise ValueError(f"the grammar lost its way: {self._matcher.get_error() or 'a token it forbids'}")

    def mask_into(self, bits: Bits) -> None:
        """Write the allowed tokens into a row of uint32 words; only end tokens once the grammar is complete."""
        self._matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)


class GrammarCompiler:
    """Makes grammar states for one model's tokenizer."""

    def __init__(self, tokenizer: Any, vocabulary: int, end_tokens: set[int]) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._end_tokens = sorted(end_tokens)
        self._trie: Any = None

    @property
    def words(self) -> int:
        """uint32 words in a mask."""
        return (self._vocabulary + 31) // 32

    def compile(self, grammar: Grammar) -> GrammarState:
        """Raises GrammarError with the reason where the grammar cannot be used."""
        import llguidance
        import llguidance.hf

        if self._trie is None:
            self._trie = llguidance.hf.from_tokenizer(
                self._tokenizer, n_vocab=self._vocabulary, eos_token=self._end_tokens or None
            )
        try:
            source = _to_llguidance(grammar)
            problem = llguidance.LLMatcher.validate_grammar(source, self._trie)
            if problem:
                raise GrammarError(str(problem).strip())
            return GrammarState(llguidance.LLMatcher(self._trie, source), grammar.after)
        except GrammarError:
            raise
        except Exception as error:  # llguidance raises several kinds, and a bad schema must not end the engine
            raise GrammarError(str(error)) from error


def _to_llguidance(grammar: Grammar) -> str:
    import llguidance

    matcher = llguidance.LLMatcher
    match grammar.kind:
        case "json":
            return str(matcher.grammar_from_json_schema('{"type": "object"}'))
        case "schema":
            schema = grammar.source if isinstance(grammar.source, str) else json.dumps(grammar.source)
            return str(matcher.grammar_from_json_schema(schema))
        case "regex":
            return str(matcher.grammar_from_regex(str(grammar.source)))
        case "gbnf":
            return str(matcher.grammar_from_lark(llguidance.gbnf_to_lark(str(grammar.source))))
        case "lark":
            return str(matcher.grammar_from_lark(str(grammar.source)))
