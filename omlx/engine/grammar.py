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

_JSON_OPTIONS = {"whitespace_flexible": True, "whitespace_pattern": r"[ ]|\n[ \t]{0,20}"}
"""Little white space: a small model that may write any amount of it often never stops."""


class Grammar(msgspec.Struct, frozen=True, kw_only=True):
    """What the reply must look like."""

    kind: Literal["json", "schema", "regex", "lark", "gbnf"]
    source: str | dict[str, Any] = ""
    """The schema (object or text), regular expression, Lark or GBNF text; unused for "json" (any object)."""
    after: str = ""
    """The grammar begins once the reply contains this text (say, the end of thinking); "": at once."""
    opening: str = ""
    """With this the reply either begins with this text and is free until `after`, or obeys the grammar at once."""


class GrammarError(ValueError):
    """The grammar cannot be used; the message says why."""


class GrammarState:
    """Where one reply stands in its grammar."""

    __slots__ = ("_matched", "_matcher", "_opening", "_seen", "_waits_for")

    def __init__(self, matcher: Any, opening: list[int], after: str) -> None:
        self._matcher = matcher
        self._opening = opening
        """Tokens of the text that would make the reply free; [] once that is decided."""
        self._matched = 0
        """How many of them the reply has begun with."""
        self._waits_for = after
        self._seen = ""

    @property
    def active(self) -> bool:
        """False while the reply is free (before `after`)."""
        return bool(self._opening) or not self._waits_for

    @property
    def choice(self) -> int | None:
        """The token that would make the reply free, while that is open. The reply takes it if it wants it most."""
        return self._opening[0] if self._opening and not self._matched else None

    @property
    def complete(self) -> bool:
        """True once nothing may follow."""
        return not self._opening and self.active and bool(self._matcher.is_stopped())

    def accept(self, token: int, text: str) -> None:
        """The reply went on by `token`, whose text is `text`. ValueError where the grammar forbids it."""
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
            raise ValueError(f"the grammar lost its way: {self._matcher.get_error() or 'a token it forbids'}")

    def mask_into(self, bits: Bits) -> None:
        """Write the allowed tokens into a row of uint32 words; only end tokens once the grammar is complete."""
        if self._matched and self._opening:
            word, bit = divmod(self._opening[self._matched], 32)
            bits[:] = 0
            bits[word] = np.uint32(1 << bit)
        else:
            self._matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)


class GrammarCompiler:
    """Makes grammar states for one model; `tokenizer` is the Rust tokenizer."""

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

        if self._trie is None:
            self._trie = llguidance.LLTokenizer(
                _plain_json(self._tokenizer), n_vocab=self._vocabulary, eos_token=self._end_tokens or None
            )
        try:
            source = _to_llguidance(grammar)
            problem = llguidance.LLMatcher.validate_grammar(source, self._trie)
            if problem:
                raise GrammarError(str(problem).strip())
            opening = self._tokenizer.encode(grammar.opening, add_special_tokens=False).ids if grammar.opening else []
            return GrammarState(llguidance.LLMatcher(self._trie, source), list(opening), grammar.after)
        except GrammarError:
            raise
        except Exception as error:  # llguidance raises several kinds, and a bad schema must not end the engine
            raise GrammarError(str(error)) from error


def _closed(schema: Any) -> Any:
    """The schema as llama.cpp reads it: an object that lists its properties has no others unless it says so."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {
        key: value if key in {"enum", "const", "default", "examples"} else _closed(value)
        for key, value in schema.items()
    }
    if isinstance(schema.get("properties"), dict) and "type" in schema:
        closed.setdefault("additionalProperties", False)
    return closed


def _plain_json(tokenizer: Any) -> str:
    """A Rust tokenizer as JSON, without padding and truncation."""
    copy = type(tokenizer).from_str(tokenizer.to_str())
    copy.no_padding()
    copy.no_truncation()
    return str(copy.to_str())


def _to_llguidance(grammar: Grammar) -> str:
    import llguidance
    from llguidance.gbnf_to_lark import any_to_lark

    matcher = llguidance.LLMatcher
    match grammar.kind:
        case "json":
            return str(matcher.grammar_from_json_schema('{"type": "object"}', defaults=_JSON_OPTIONS))
        case "schema":
            schema = json.loads(grammar.source) if isinstance(grammar.source, str) else grammar.source
            return str(matcher.grammar_from_json_schema(json.dumps(_closed(schema)), defaults=_JSON_OPTIONS))
        case "regex":
            return str(matcher.grammar_from_regex(str(grammar.source)))
        case "gbnf":
            return str(matcher.grammar_from_lark(any_to_lark(str(grammar.source))))
        case "lark":
            return str(matcher.grammar_from_lark(str(grammar.source)))
