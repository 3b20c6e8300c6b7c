"""*Go values* in Python: what a template can hold, whether it is true, and how Go prints it.

nil is None, slices are lists, maps are dicts with string keys, structs are `Struct`. Values that print as JSON in
Ollama (its types have a `String` method) say so with `prints_json`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from omlx.prompting.errors import TemplateError

MAX_TEXT = 1 << 26
"""Characters, of the output and of anything a template makes on the way to it."""


def joined(parts: Iterable[str], separator: str = "") -> str:
    """`separator.join(parts)`, made no further than it may be. Raises TemplateError where it is too large."""
    found: list[str] = []
    size = 0
    for part in parts:
        size += len(part) + len(separator)
        if size > MAX_TEXT:
            raise TemplateError("the text is too large")
        found.append(part)
    return separator.join(found)


class Struct:
    """A Go struct: named fields in order, and the JSON names they have (with Go's omitempty)."""

    def __init__(
        self,
        kind: str,
        fields: Mapping[str, Any],
        json_names: Mapping[str, str] | None = None,
        *,
        omit_empty: frozenset[str] = frozenset(),
        prints_json: bool = False,
    ) -> None:
        self.kind = kind
        self.fields = dict(fields)
        self.json_names = dict(json_names or {})
        self.omit_empty = omit_empty
        self.prints_json = prints_json
        self.methods: dict[str, Any] = {}
        """Results of methods without arguments: read like fields, not printed."""

    def to_json(self) -> dict[str, Any]:
        return {
            name: self.fields[field]
            for field, name in self.json_names.items()
            if not (field in self.omit_empty and not is_true(self.fields[field]))
        }


class JsonList(list[Any]):
    """A slice that prints as JSON."""

    prints_json = True


class JsonMap(dict[str, Any]):
    """A map that prints as JSON."""

    prints_json = True


class TypeNames(list[str]):
    """A JSON schema's `type`: one name prints (and serialises) as a string, several as a slice."""


def is_true(value: Any) -> bool:
    """Go's truth: false are nil, false, 0, and empty strings, slices and maps; structs are always true."""
    if isinstance(value, Struct):
        return True
    if isinstance(value, float):
        return value != 0
    return bool(value)


def type_name(value: Any) -> str:
    """The Go type, as error messages and `%T` show it."""
    match value:
        case None:
            return "<nil>"
        case bool():
            return "bool"
        case int():
            return "int"
        case float():
            return "float64"
        case complex():
            return "complex128"
        case str():
            return "string"
        case Struct():
            return value.kind
        case TypeNames():
            return "api.PropertyType"
        case Mapping():
            return "map[string]interface {}"
        case Sequence():
            return "[]interface {}"
    return "func"


def sorted_items(value: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """A map's entries in the order of `range` and of printing."""
    return sorted(value.items(), key=lambda item: item[0].encode("utf-8", "surrogatepass"))


def to_text(value: Any, *, top: bool = True) -> str:
    """`%v`. nil is "<no value>" where a template prints it and "<nil>" inside other values."""
    match value:
        case None:
            return "<no value>" if top else "<nil>"
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case int():
            return str(value)
        case float():
            return float_text(value)
        case complex():
            return f"({float_text(value.real)}{'+' if value.imag >= 0 else ''}{float_text(value.imag)}i)"
        case TypeNames():
            return value[0] if len(value) == 1 else ("[" + " ".join(value) + "]" if value else "")
    if getattr(value, "prints_json", False):
        return to_json(value)
    match value:
        case Struct():
            return "{" + " ".join(to_text(field, top=False) for field in value.fields.values()) + "}"
        case Mapping():
            items = (f"{key}:{to_text(item, top=False)}" for key, item in sorted_items(value))
            return "map[" + " ".join(items) + "]"
        case Sequence():
            return "[" + " ".join(to_text(item, top=False) for item in value) + "]"
    return str(value)


_EXPONENT_FROM = 6
"""Of the number's power of ten: Go's `%g` with as many digits as needed."""


def float_text(value: float) -> str:
    """`%v`: the fewest digits that read back the same; below 1e-04 and from 1e+06 on with an exponent."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    digits, exponent = _shortest(value)
    sign = "-" if math.copysign(1, value) < 0 else ""
    if value == 0:
        return sign + "0"
    if exponent < -4 or exponent >= _EXPONENT_FROM:
        return sign + _scientific(digits, exponent)
    return sign + _positional(digits, exponent)


def _shortest(value: float) -> tuple[str, int]:
    """The shortest digits that give the number back, and the exponent of the first one."""
    mantissa, _, exponent = f"{abs(value)!r}".partition("e")
    whole, _, fraction = mantissa.partition(".")
    power = int(exponent or 0) + len(whole) - 1
    digits = whole + fraction
    stripped = digits.lstrip("0")
    power -= len(digits) - len(stripped)
    return stripped.rstrip("0") or "0", power


def _scientific(digits: str, exponent: int) -> str:
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{digits[0]}{fraction}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"


def _positional(digits: str, exponent: int) -> str:
    if exponent < 0:
        return "0." + "0" * (-exponent - 1) + digits
    whole = digits[: exponent + 1].ljust(exponent + 1, "0")
    return whole + (f".{digits[exponent + 1 :]}" if len(digits) > exponent + 1 else "")


_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def to_json(value: Any) -> str:
    """`json.Marshal`: compact, map keys sorted, `<`, `>` and `&` escaped. Raises TemplateError for NaN and the like."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return _json_float(value)
        case str():
            text = json.dumps(value, ensure_ascii=False)
            return "".join(_ESCAPES.get(char, char) for char in text)
        case TypeNames():
            return to_json(value[0] if len(value) == 1 else list(value))
        case Struct():
            return _json_object(list(value.to_json().items()))
        case Mapping():
            return _json_object(sorted_items(value))
        case Sequence():
            return "[" + ",".join(map(to_json, value)) + "]"
    raise TemplateError(f"json: unsupported type: {type_name(value)}")


def _json_object(items: list[tuple[str, Any]]) -> str:
    return "{" + ",".join(f"{to_json(key)}:{to_json(item)}" for key, item in items) + "}"


def _json_float(value: float) -> str:
    if not math.isfinite(value):
        raise TemplateError(f"json: unsupported value: {float_text(value)}")
    digits, exponent = _shortest(value)
    sign = "-" if math.copysign(1, value) < 0 else ""
    if value != 0 and (abs(value) < 1e-6 or abs(value) >= 1e21):
        text = _scientific(digits, exponent)
        # Go shortens e-09 to e-9 here.
        return sign + (text[:-2] + text[-1] if text[-3:-1] == "-0" else text)
    return sign + ("0" if value == 0 else _positional(digits, exponent))
