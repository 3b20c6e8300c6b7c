"""*Texts* that obey a JSON schema as they are, without quotes: arguments of tools in families that write elements.

A schema in the compiler's terms (see `lower`) becomes an expression of a Lark terminal. What may be a number or an
object besides a text is left free: how the family's reader would take it cannot be said here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from omlx.engine.schemas.patterns import FORMAT_PATTERNS

_ANY = "/(.|\\n)*/"
_DEPTH = 20
"""References that are followed."""
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_DATE = r"[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"  # noqa: E501
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_WORD = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,32}"
_GROUP = "[0-9A-Fa-f]{1,4}"
_URI = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*"
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": r"P(?:[0-9]+W|(?:[0-9]+Y)?(?:[0-9]+M)?[0-9]+D|[0-9]+Y(?:[0-9]+M)?|[0-9]+M|(?:[0-9]+D)?T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S))",  # noqa: E501
    "email": rf"{_WORD}(?:\.{_WORD})?@{_LABEL}(?:\.{_LABEL}){{0,3}}",
    "hostname": rf"{_LABEL}(?:\.{_LABEL}){{0,3}}",
    "ipv4": rf"{_OCTET}(?:\.{_OCTET}){{3}}",
    "ipv6": "|".join([
        f"(?:{_GROUP}:){{7}}{_GROUP}",
        *(f"(?:{_GROUP}:){{{left}}}(?::{_GROUP}){{1,{7 - left}}}" for left in range(1, 7)),
        f"::(?:{_GROUP}(?::{_GROUP}){{0,5}})?",
    ]),
    "uuid": "[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}",
    "uri": rf"[A-Za-z][A-Za-z0-9+.-]*:{_URI}(?:#{_URI})?",
}  # fmt: skip
"""Formats that the compiler knows within JSON only. These reject some valid texts and accept no invalid one."""


class _NoText(Exception):
    """No text obeys it."""


def terminal(schema: dict[str, Any], without: str) -> str:
    """The expression for texts that obey `schema` and do not contain `without`."""
    try:
        expression = _expression(schema, schema.get("$defs", {}), _DEPTH)
    except _NoText:
        expression = None
    if not without:
        return expression or _ANY
    return f"{expression or _ANY} & ~/(.|\\n)*{''.join(map(_character, without))}(.|\\n)*/"


def _expression(schema: Any, definitions: dict[str, Any], depth: int) -> str | None:
    """None: any text. Raises _NoText."""
    if schema is False:
        raise _NoText
    if not isinstance(schema, dict) or not depth:
        return None
    if "$ref" in schema:
        return _expression(definitions.get(schema["$ref"].removeprefix("#/$defs/")), definitions, depth - 1)
    parts = [_expression(part, definitions, depth - 1) for part in schema.get("allOf", ())]
    if "anyOf" in schema:
        parts.append(_either(schema["anyOf"], definitions, depth - 1))
    parts.append(_own(schema))
    expressions = [part for part in parts if part is not None]
    return f"({' & '.join(expressions)})" if expressions else None


def _either(options: Iterable[Any], definitions: dict[str, Any], depth: int) -> str | None:
    alternatives: list[str] = []
    for option in options:
        try:
            one = _expression(option, definitions, depth)
        except _NoText:
            continue
        if one is None:
            return None
        alternatives.append(one)
    if not alternatives:
        raise _NoText
    return f"({' | '.join(alternatives)})"


def _own(schema: dict[str, Any]) -> str | None:
    """What the keywords of one schema say of a text."""
    if "enum" in schema:
        written = [value if isinstance(value, str) else json.dumps(value) for value in schema["enum"]]
        return f"({' | '.join(json.dumps(text, ensure_ascii=False) for text in written)})" if written else None
    named = schema.get("type", "string")
    types = {named} if isinstance(named, str) else {*named}
    if types & {"number", "integer", "object", "array"}:
        return None
    ways = ['"null"'] if "null" in types else []
    ways += ['"true"', '"false"'] if "boolean" in types else []
    if "string" in types:
        text = _text(schema)
        if text is None:
            return None
        ways.append(text)
    return f"({' | '.join(ways)})"


def _text(schema: dict[str, Any]) -> str | None:
    expressions = []
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if least or most is not None:
        expressions.append(f"/(.|\\n){{{least},{'' if most is None else most}}}/")
    pattern = FORMAT_PATTERNS.get(schema.get("format", ""), schema.get("pattern"))
    expression = None if pattern is None else anchored(pattern)
    if expression is not None:
        expressions.append(f"/{_in_lark(expression)}/")
    if schema.get("format") in _FORMATS:
        expressions.append(f"/{_in_lark(_FORMATS[schema['format']])}/")
    return f"({' & '.join(expressions)})" if expressions else None


def anchored(pattern: str) -> str | None:
    """A usable `pattern`, which may match anywhere in a text, for the whole of it; None where that cannot be said."""
    ways = []
    for way in _alternatives(pattern):
        begins, ends = way.startswith("^"), _ends(way)
        inner = way[begins : len(way) - ends]
        if _has_anchor(inner):
            return None
        ways.append(("" if begins else r"(.|\n)*") + f"(?:{inner})" + ("" if ends else r"(.|\n)*"))
    return "|".join(ways)


def _ends(way: str) -> bool:
    backslashes = len(way) - 1 - len(way[:-1].rstrip("\\"))
    return way.endswith("$") and backslashes % 2 == 0


def _tokens(pattern: str) -> Iterable[tuple[str, bool]]:
    """Characters of the pattern, each with its backslash, and whether it stands in a class."""
    position, inside = 0, False
    while position < len(pattern):
        size = 2 if pattern[position] == "\\" else 1
        one = pattern[position : position + size]
        yield one, inside
        inside = (inside or one == "[") and one != "]"
        position += size


def _alternatives(pattern: str) -> list[str]:
    """What stands between the `|` outside of groups."""
    alternatives, depth = [""], 0
    for one, inside in _tokens(pattern):
        if one == "|" and not depth and not inside:
            alternatives.append("")
            continue
        alternatives[-1] += one
        depth += 0 if inside else (one == "(") - (one == ")")
    return alternatives


def _has_anchor(pattern: str) -> bool:
    before = ""
    for one, inside in _tokens(pattern):
        if one in "^$" and not inside and not (one == "^" and before == "["):
            return True
        before = one
    return False


def _in_lark(expression: str) -> str:
    """The expression between slashes."""
    return "".join({"/": r"\/", "\n": r"\n", "\r": r"\r", "\t": r"\t"}.get(one, one) for one, _ in _tokens(expression))


def _character(character: str) -> str:
    return character if character.isalnum() else f"\\x{{{ord(character):x}}}"
