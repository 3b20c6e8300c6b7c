"""*Python calls* as models write them: `[f(a=1, b="x"), g()]`. Read by hand, never evaluated."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from omlx.prompting.tools.cursor import MAX_NESTING, Cursor, NotACall, parse_float, parse_int, whole_characters

_QUOTE = re.compile(r"[rRbBuUfF]{0,2}(\"\"\"|'''|\"|')")
_BODIES = {
    '"""': re.compile(r'((?:[^\\]|\\.)*?)"""', re.DOTALL),
    "'''": re.compile(r"((?:[^\\]|\\.)*?)'''", re.DOTALL),
    '"': re.compile(r'((?:[^"\\]|\\.)*)"', re.DOTALL),
    "'": re.compile(r"((?:[^'\\]|\\.)*)'", re.DOTALL),
}
_PLAIN = re.compile(r"[\w.+-]+")
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
_WORDS: dict[str, Any] = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None}
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\n": ""}

PythonCall = tuple[str, dict[str, Any]]


def read_calls(cursor: Cursor) -> Iterator[PythonCall]:
    """`[call, call]`, with a bracket around them; each as soon as it is whole."""
    cursor.literal("[")
    some = False
    while True:
        cursor.blank()
        if some and cursor.maybe("]"):
            return
        yield read_call(cursor)
        some = True
        cursor.blank()
        if cursor.over() or cursor.one_of(",", "]") == "]":
            return


def read_call(cursor: Cursor) -> PythonCall:
    """`name(key=value, …)`; positional arguments are no call (nothing says which parameter they are)."""
    name = cursor.name()
    cursor.literal("(")
    arguments: dict[str, Any] = {}
    while True:
        cursor.blank()
        if cursor.maybe(")"):
            return name, arguments
        key = cursor.name()
        cursor.blank()
        cursor.one_of("=")
        cursor.blank()
        arguments[key] = read_value(cursor)
        cursor.blank()
        if cursor.over() or cursor.one_of(",", ")") == ")":
            return name, arguments


def read_value(cursor: Cursor, depth: int = 0) -> Any:
    """A string, number, True, False, None, list, tuple or dict."""
    if depth > MAX_NESTING:
        raise NotACall
    if cursor.at_end:
        raise cursor.undecided()
    opening = cursor.text[cursor.position]
    if opening in "[(":
        return _read_list(cursor, "]" if opening == "[" else ")", depth)
    if opening == "{":
        return _read_dict(cursor, depth)
    quote = _QUOTE.match(cursor.text, cursor.position)
    if quote is not None:
        return _read_string(cursor, quote)
    plain = _PLAIN.match(cursor.text, cursor.position)
    if plain is None:
        raise NotACall
    cursor.position = plain.end()
    if cursor.at_end and not cursor.over():
        # A number or word may go on; and a call does not end with one.
        raise cursor.undecided()
    if plain.group() in _WORDS:
        return _WORDS[plain.group()]
    digits = plain.group().replace("_", "")
    if _NUMBER.fullmatch(digits) is None:
        raise NotACall
    try:
        return parse_int(digits) if digits.lstrip("+-").isdigit() else parse_float(digits)
    except ValueError:
        raise NotACall from None


def _read_string(cursor: Cursor, quote: re.Match[str]) -> str:
    mark = quote.group(1)
    if quote.end() + 1 >= len(cursor.text) and len(mark) == 1 and cursor.text[quote.end() :] in {"", mark}:
        # `""` may be an empty string or the beginning of `"""`.
        raise cursor.undecided()
    body = _BODIES[mark].match(cursor.text, quote.end())
    if body is None:
        raise cursor.undecided()
    cursor.position = body.end()
    if "r" in quote.group()[: -len(mark)].lower():
        return body.group(1)
    return str(whole_characters(_ESCAPE.sub(_unescape, body.group(1))))


def _read_list(cursor: Cursor, closing: str, depth: int) -> list[Any]:
    cursor.position += 1
    items: list[Any] = []
    while True:
        cursor.blank()
        if cursor.maybe(closing):
            return items
        items.append(read_value(cursor, depth + 1))
        cursor.blank()
        if cursor.over() or cursor.one_of(",", closing) == closing:
            return items


def _read_dict(cursor: Cursor, depth: int) -> dict[str, Any]:
    cursor.position += 1
    items: dict[str, Any] = {}
    while True:
        cursor.blank()
        if cursor.maybe("}"):
            return items
        key = read_value(cursor, depth + 1)
        if not isinstance(key, str | int | float) or isinstance(key, bool):
            raise NotACall
        cursor.blank()
        cursor.literal(":")
        cursor.blank()
        items[str(key)] = read_value(cursor, depth + 1)
        cursor.blank()
        if cursor.over() or cursor.one_of(",", "}") == "}":
            return items


def _unescape(match: re.Match[str]) -> str:
    code = match.group(1) or match.group(2) or match.group(3)
    if code:
        return chr(int(code, 16)) if int(code, 16) <= 0x10FFFF else "\ufffd"
    char = match.group(4)
    if char in _ESCAPES:
        return _ESCAPES[char]
    return char if char in "\\'\"" else match.group()
