"""Structured output: a *grammar* says which tokens may come next.

`Grammar` (omlx.messages.constraint) is the request, plain data; a `GrammarCompiler` belongs to a model and makes
*matchers* of it (llguidance's), one per reply, which `guide.py` asks for masks. Grammars come from clients, so another
process first checks whether one can be compiled within limits (`grammar_process`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from omlx.engine.grammar_process import written
from omlx.engine.grammar_text import TOO_DEEP, GrammarError, parser_limits, sentence
from omlx.engine.panics import ends_only_its_request
from omlx.lru import LRUCache
from omlx.messages.constraint import Grammar

MAX_BYTES = 4_000_000
"""Of a grammar as JSON, with the schemas that it refers to."""
_KEPT = 8
"""Compiled grammars that are kept: clients send the same schema again and again."""
LARGE_VOCABULARY = 170_000
"""Tokens. Their index takes one to three seconds in which no other thread runs Python: it is made at the load."""


class GrammarCompiler:
    """Makes matchers for one model; `tokenizer` is the Rust tokenizer. Any thread may call it."""

    def __init__(self, tokenizer: Any, vocabulary: int, end_tokens: set[int]) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._end_tokens = sorted(end_tokens)
        self._trie: Any = None
        self._matchers: LRUCache[bytes, Any] = LRUCache(max_entries=_KEPT)
        self._lock = threading.Lock()
        if vocabulary > LARGE_VOCABULARY:
            self._index_now()

    @property
    def words(self) -> int:
        """uint32 words in a mask."""
        return (self._vocabulary + 31) // 32

    def is_compiled(self, grammar: Grammar) -> bool:
        """Whether `matcher` takes microseconds. Raises GrammarError."""
        with self._lock:
            return _key(grammar) in self._matchers

    def matcher(self, grammar: Grammar, check: Callable[[], None] = lambda: None) -> Any:
        """A matcher at the grammar's start. Raises GrammarError with the reason where the grammar cannot be used.

        Takes microseconds for a grammar that was compiled not long ago. Otherwise it may take seconds: call it in a
        helper thread first. `check` is called meanwhile; it may raise to give up.
        """
        key = _key(grammar)
        with self._lock:
            matcher = self._matchers.get(key)
        if matcher is None:
            matcher = self._compile(written(grammar, check))
            with self._lock:
                self._matchers.put(key, matcher)
        return matcher.deep_copy()

    def _compile(self, text: str) -> Any:
        import llguidance

        matcher = llguidance.LLMatcher(self._vocabulary_trie(), text, log_level=0, limits=parser_limits())
        if not matcher.is_error():
            # The first mask shows whether anything obeys the grammar at all.
            bits = np.zeros(self.words, np.uint32)
            matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
            if not matcher.is_error() and not bits.any():
                raise GrammarError("no text obeys it")
        if matcher.is_error():
            raise GrammarError(sentence(matcher.get_error()))
        return matcher

    def _index_now(self) -> None:
        """If it fails, the first request with a grammar gets the error."""
        try:
            self._vocabulary_trie()
        except BaseException as error:
            if not ends_only_its_request(error):
                raise

    def _vocabulary_trie(self) -> Any:
        """The vocabulary as llguidance wants it; takes from a few tenths of a second to some seconds to build."""
        import llguidance

        with self._lock:
            if self._trie is None:
                self._trie = llguidance.LLTokenizer(
                    _plain_json(self._tokenizer), n_vocab=self._vocabulary, eos_token=self._end_tokens or None
                )
            return self._trie


def _key(grammar: Grammar) -> bytes:
    try:
        key = msgspec.json.encode((grammar.kind, grammar.source, grammar.schemas, grammar.texts))
    except RecursionError:
        raise GrammarError(TOO_DEEP) from None
    if len(key) > MAX_BYTES:
        raise GrammarError(f"it is longer than {MAX_BYTES:,} characters")
    return key


def _plain_json(tokenizer: Any) -> str:
    """A Rust tokenizer as JSON, without padding and truncation. A copy of it would hold the GIL for a second."""
    fields = msgspec.json.decode(tokenizer.to_str(), type=dict[str, msgspec.Raw])
    fields |= dict.fromkeys(("padding", "truncation"), msgspec.Raw(b"null"))
    return msgspec.json.encode(fields).decode()
