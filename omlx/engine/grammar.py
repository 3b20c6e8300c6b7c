"""Structured output: a *grammar* says which tokens may come next.

`Grammar` (omlx.messages.constraint) is the request, plain data; a `GrammarCompiler` belongs to a model and makes
*matchers* of it (llguidance's), one per reply, which `guide.py` asks for masks. Grammars come from clients: what they
may cost is bounded here.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from omlx.engine.schemas.refs import SchemaError
from omlx.engine.schemas.schema import prepare
from omlx.engine.schemas.texts import terminal
from omlx.lru import LRUCache
from omlx.messages.constraint import Grammar

MAX_TEXT = 1 << 16
"""Characters of a regular expression or grammar."""
MAX_SECONDS = 10.0
"""Longest wait for one compilation. Ordinary grammars need milliseconds."""
_AT_ONCE = 2
"""Compilations that may run at the same time, those that were given up included."""
_MESSAGE = 300
"""Characters of the compiler's messages that are passed on."""
_KEPT = 16
"""Compiled grammars that are kept: clients send the same schema again and again."""

_TOO_DEEP = "it is nested too deeply"
_JSON_OPTIONS = {
    "whitespace_flexible": True,
    # Little white space: a small model that may write any amount of it often never stops.
    "whitespace_pattern": r"[ ]|\n[ \t]{0,20}",
    # What cannot be enforced is passed over; `oneOf` is already written as `anyOf`.
    "coerce_one_of": True,
    "lenient": True,
}
_LIMITS = {
    "max_items_in_row": 20_000,
    "max_grammar_size": 200_000,
    "max_lexer_states": 100_000,
    "verbose_errors": False,
}


_TOO_LARGE = "it is too large for a grammar; simplify it"
_TOO_CIRCULAR = "it joins parts that contain themselves; leave one of them out"
_KNOWN = {
    "NoExtension": "no text obeys it",
    "Unsatisfiable schema": "no value obeys it",
    "schema too large": _TOO_LARGE,
    "assertion failed: grammar.symbols": _TOO_LARGE,
    "Schema intersection stack level": _TOO_CIRCULAR,
    "circular references": _TOO_CIRCULAR,
}
"""What the compiler's messages that begin so mean."""


class GrammarError(ValueError):
    """The grammar cannot be used; the message says why."""


class GrammarCompiler:
    """Makes matchers for one model; `tokenizer` is the Rust tokenizer. Any thread may call it."""

    def __init__(self, tokenizer: Any, vocabulary: int, end_tokens: set[int]) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._end_tokens = sorted(end_tokens)
        self._trie: Any = None
        self._matchers: LRUCache[bytes, Any] = LRUCache(max_entries=_KEPT)
        self._lock = threading.Lock()
        self._places = threading.Semaphore(_AT_ONCE)

    @property
    def words(self) -> int:
        """uint32 words in a mask."""
        return (self._vocabulary + 31) // 32

    def matcher(self, grammar: Grammar) -> Any:
        """A matcher at the grammar's start. Raises GrammarError with the reason where the grammar cannot be used.

        Takes microseconds for a grammar that was compiled not long ago. Otherwise it may take seconds: let a helper
        thread ask first, then.
        """
        try:
            key = msgspec.json.encode((grammar.kind, grammar.source, grammar.schemas, grammar.texts))
        except RecursionError:
            raise GrammarError(_TOO_DEEP) from None
        with self._lock:
            matcher = self._matchers.get(key)
        if matcher is None:
            trie = self._vocabulary_trie()
            matcher = self._bounded(lambda: self._compile(grammar, trie))
            with self._lock:
                self._matchers.put(key, matcher)
        return matcher.deep_copy()

    def _bounded(self, work: Callable[[], Any]) -> Any:
        """The result of `work`, done in a thread that can be left behind."""
        if not self._places.acquire(timeout=MAX_SECONDS):
            raise GrammarError("other grammars are still being compiled; try again later")
        result: list[Any] = []

        def run() -> None:
            try:
                result.append(work())
            except Exception as error:  # raised where the result is waited for
                result.append(error)
            finally:
                self._places.release()

        thread = threading.Thread(target=run, name="grammar", daemon=True)
        thread.start()
        thread.join(MAX_SECONDS)
        if not result:
            raise GrammarError(f"compiling it takes longer than {MAX_SECONDS:g} seconds; simplify it")
        if isinstance(result[0], GrammarError):
            raise result[0]
        if isinstance(result[0], RecursionError):
            raise GrammarError(_TOO_DEEP) from result[0]
        if isinstance(result[0], Exception):  # llguidance raises several kinds
            raise GrammarError(sentence(str(result[0]))) from result[0]
        return result[0]

    def _compile(self, grammar: Grammar, trie: Any) -> Any:
        try:
            return self._compile_once(grammar, trie)
        except GrammarError as error:
            if str(error) != _TOO_CIRCULAR:
                raise
            return self._compile_once(grammar, trie, narrow=True)

    def _compile_once(self, grammar: Grammar, trie: Any, *, narrow: bool = False) -> Any:
        import llguidance

        text = _to_llguidance(grammar, narrow)
        matcher = llguidance.LLMatcher(trie, text, log_level=0, limits=llguidance.LLParserLimits(**_LIMITS))
        if not matcher.is_error():
            # The first mask shows whether anything obeys the grammar at all.
            bits = np.zeros(self.words, np.uint32)
            matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
            if not matcher.is_error() and not bits.any():
                raise GrammarError("no text obeys it")
        if matcher.is_error():
            raise GrammarError(sentence(matcher.get_error()))
        return matcher

    def _vocabulary_trie(self) -> Any:
        """The vocabulary as llguidance wants it; takes from a few tenths of a second to some seconds to build."""
        import llguidance

        with self._lock:
            if self._trie is None:
                self._trie = llguidance.LLTokenizer(
                    _plain_json(self._tokenizer), n_vocab=self._vocabulary, eos_token=self._end_tokens or None
                )
            return self._trie


def sentence(message: str) -> str:
    """The compiler's message on one line, without its dumps of state."""
    text = " ".join(message.partition("\n<")[0].split())[:_MESSAGE].removeprefix("panic: ")
    return next((said for start, said in _KNOWN.items() if text.startswith(start)), text)


def _plain_json(tokenizer: Any) -> str:
    """A Rust tokenizer as JSON, without padding and truncation."""
    copy = type(tokenizer).from_str(tokenizer.to_str())
    copy.no_padding()
    copy.no_truncation()
    return str(copy.to_str())


def _to_llguidance(grammar: Grammar, narrow: bool) -> str:
    import llguidance
    from llguidance.gbnf_to_lark import any_to_lark

    matcher = llguidance.LLMatcher
    if grammar.kind == "json":
        return str(matcher.grammar_from_json_schema('{"type": "object"}', defaults=_JSON_OPTIONS))
    try:
        if grammar.kind == "schema":
            schema = prepare(grammar.source, narrow=narrow)
            return str(matcher.grammar_from_json_schema(json.dumps(schema), defaults=_JSON_OPTIONS))
        sides = [
            {"name": name, "json_schema": {**prepare(schema, narrow=narrow), "x-guidance": _JSON_OPTIONS}}
            for name, schema in grammar.schemas.items()
        ]
        terminals = [
            f"{name}: {terminal(prepare(text.schema, narrow=narrow), text.without)}"
            for name, text in grammar.texts.items()
        ]
    except SchemaError as error:
        raise GrammarError(str(error)) from None
    text = "\n".join([str(grammar.source), *terminals])
    if grammar.trusted:
        return json.dumps({"grammars": [{"name": "reply", "lark_grammar": text}, *sides]})
    if len(text) > MAX_TEXT:
        raise GrammarError(f"it is longer than {MAX_TEXT} characters")
    if grammar.kind == "regex":
        return str(matcher.grammar_from_regex(text))
    if "%json" in text:
        raise GrammarError("a JSON schema within a grammar is not supported: give it as the format itself")
    return str(matcher.grammar_from_lark(any_to_lark(text) if grammar.kind == "gbnf" else text))
