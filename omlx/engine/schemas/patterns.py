"""Regular expressions of JSON schemas, as the grammar compiler takes them.

Schemas are written with ECMA-262's in mind, the compiler knows those of Rust's `regex`. What it cannot follow at all
(most look-around, back references, word boundaries) makes a pattern *unusable*: it is not enforced.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

from omlx.engine.schemas.lookahead import split

ASCII_FORMATS = {"iri": "uri", "iri-reference": "uri-reference", "idn-email": "email", "idn-hostname": "hostname"}
"""Formats that are enforced as the narrower one that the compiler knows."""
_URI_CHARACTERS = r"(?:[A-Za-z0-9._~!$&'()*+,;=@/-]|%[0-9A-Fa-f]{2})*"
FORMAT_PATTERNS = {
    "uri-reference": rf"^{_URI_CHARACTERS}(?:\?{_URI_CHARACTERS})?(?:#{_URI_CHARACTERS})?$",
    "json-pointer": r"^(?:/(?:[^~/]|~[01])*)*$",
    "relative-json-pointer": r"^(?:0|[1-9][0-9]*)(?:#|(?:/(?:[^~/]|~[01])*)*)$",
}
"""Formats that the compiler does not know."""
MAX_PATTERN = 1 << 14
"""Characters of a pattern; longer ones are not enforced."""
_TOO_LARGE = ("schema too large", "assertion failed: grammar.symbols", "initial lexer configuration")
"""Beginnings of the compiler's messages about a schema that is too large."""
_ESCAPES = {"Z": "$", "z": "$", "A": "^", "0": r"\x00", "e": r"\x1b"}
_KEPT = frozenset("dDsSwWbBpPuxnrtfv")
"""Letters that mean the same behind a backslash in both kinds."""
_SURROGATES = re.compile(r"(?<![-\\])(?:\\u[dD][89a-fA-F][0-9a-fA-F]{2}-?)+")
"""Surrogates: no text has them."""
_BRACES = re.compile(r"\{[A-Za-z0-9_=]*\}")
_REPEATS = re.compile(r"\{[0-9]+(?:,[0-9]*)?\}")


def usable(pattern: Any) -> list[str] | None:
    """Patterns in the compiler's kind that hold together where `pattern` does; None where it cannot be enforced."""
    if not isinstance(pattern, str) or len(pattern) > MAX_PATTERN:
        return None
    translated = [_translated(_SURROGATES.sub("", part)) for part in split(pattern) or ()]
    return (
        translated
        if translated and all(_compiles({"type": "string", "pattern": part}) for part in translated)
        else None
    )


def usable_alone(pattern: Any) -> str | None:
    """The same, where it is a single one."""
    translated = usable(pattern)
    return translated[0] if translated is not None and len(translated) == 1 else None


def disjoint(patterns: Sequence[str]) -> bool:
    """Whether no property name matches two of the usable `patterns`."""
    return _compiles({"type": "object", "patternProperties": dict.fromkeys(patterns, True)})


def trouble(schema: dict[str, Any]) -> Literal["", "empty", "unknown"]:
    """Whether the compiler finds that no value obeys `schema`, or cannot tell."""
    return _trouble(json.dumps(schema))


@lru_cache(4096)
def _trouble(schema: str) -> Literal["", "empty", "unknown"]:
    message = _message(schema)
    return "" if not message else "empty" if message.startswith("Unsatisfiable") else "unknown"


def too_large(schema: str) -> bool:
    """Whether a lowered schema, as JSON, has more parts than the compiler takes."""
    return _message(schema).startswith(_TOO_LARGE)


def _message(schema: str) -> str:
    import llguidance

    grammar = llguidance.LLMatcher.grammar_from_json_schema(schema, defaults={"lenient": True})
    return str(llguidance.LLMatcher.validate_grammar(grammar))


def _compiles(schema: dict[str, Any]) -> bool:
    return not trouble(schema)


def _translated(pattern: str) -> str:
    out: list[str] = []
    position, inside = 0, False
    while position < len(pattern):
        character, following = pattern[position], pattern[position + 1 : position + 2]
        if character == "\\" and following:
            out.append(_escape(following, pattern[position + 2 : position + 3]))
            position += 3 if following == "c" and pattern[position + 2 : position + 3].isalpha() else 2
            if braces := following in "pPxu" and _BRACES.match(pattern, position):
                out.append(braces.group())
                position = braces.end()
            continue
        if inside:
            inside = character != "]"
            # Rust's classes can be nested, and have operators of doubled letters.
            out.append("\\" + character if character in "[&~" else character)
        elif character == "[":
            empty = next((text for text in ("[^]", "[]") if pattern.startswith(text, position)), None)
            if empty:
                out.append(r"[\s\S]" if empty == "[^]" else r"[^\s\S]")
                position += len(empty)
                continue
            inside = True
            negated = following == "^"
            out.append("[^" if negated else "[")
            position += negated
        elif (character == "{" and not _REPEATS.match(pattern, position)) or (
            character == "}" and not re.search(r"(?<!\\)\{[0-9]+(?:,[0-9]*)?\Z", "".join(out[-12:]))
        ):
            out.append("\\" + character)
        else:
            out.append(character)
        position += 1
    return "".join(out)


def _escape(letter: str, following: str) -> str:
    if letter == "c" and following.isalpha():
        return f"\\x{{{ord(following) % 32:x}}}"
    if letter in _ESCAPES and not (letter == "0" and following.isdigit()):
        return _ESCAPES[letter]
    if letter in "<>" or (letter.isalpha() and letter not in _KEPT) or not letter.isascii():
        return letter
    return "\\" + letter


def matches(pattern: str, name: str) -> bool:
    """Whether a usable pattern is found in a property's name."""
    schema = {"type": "object", "properties": {name: True}, "required": [name], "patternProperties": {pattern: False}}
    return not _compiles(schema)
