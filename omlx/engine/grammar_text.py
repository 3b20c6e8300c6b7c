"""Writes a request's grammar in llguidance's terms, and checks that llguidance can compile it.

Grammars come from clients. A few bytes may take the compiler minutes or gigabytes: `grammar_process` calls this where
it can be ended.
"""

from __future__ import annotations

import json
from typing import Any

from omlx.engine.schemas.refs import SchemaError
from omlx.engine.schemas.schema import prepare
from omlx.engine.schemas.texts import terminal
from omlx.messages.constraint import Grammar

MAX_TEXT = 1 << 16
"""Characters of a regular expression or grammar."""
_MESSAGE = 300
"""Characters of the compiler's messages that are passed on."""

TOO_DEEP = "it is nested too deeply"
_JSON_OPTIONS = {
    "whitespace_flexible": True,
    # Little white space: a small model that may write any amount of it often never stops.
    "whitespace_pattern": r"[ ]|\n[ \t]{0,20}",
    # What cannot be enforced is ignored; `oneOf` is already written as `anyOf`.
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
"""Beginnings of the compiler's messages, and what they mean."""


class GrammarError(ValueError):
    """The grammar cannot be used; the message says why."""


def parser_limits() -> Any:
    """llguidance's limits of one grammar."""
    import llguidance

    return llguidance.LLParserLimits(**_LIMITS)


def sentence(message: str) -> str:
    """The compiler's message on one line, without its dumps of state."""
    text = " ".join(message.partition("\n<")[0].split())[:_MESSAGE].removeprefix("panic: ")
    return next((said for start, said in _KNOWN.items() if text.startswith(start)), text)


def write(grammar: Grammar) -> str:
    """The grammar for llguidance, which can compile it. Raises GrammarError, RecursionError, and what llguidance raises
    (several kinds)."""
    try:
        return _checked(_written(grammar, narrow=False))
    except GrammarError as error:
        if str(error) != _TOO_CIRCULAR:
            raise
        return _checked(_written(grammar, narrow=True))


def _checked(text: str) -> str:
    import llguidance

    message = llguidance.LLMatcher.validate_grammar(text, limits=parser_limits())
    if message:
        raise GrammarError(sentence(message))
    return text


def _written(grammar: Grammar, *, narrow: bool) -> str:
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
