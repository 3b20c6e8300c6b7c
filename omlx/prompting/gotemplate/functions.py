"""The functions a Go template may call: the standard ones and those Ollama adds."""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from datetime import date, timedelta
from typing import Any

from omlx.prompting.errors import TemplateError
from omlx.prompting.gotemplate.printf import sprint, sprintf, sprintln
from omlx.prompting.gotemplate.values import Struct, TypeNames, is_true, to_json, to_text, type_name

Function = Callable[..., Any]


def _kind(value: Any) -> str:
    match value:
        case None:
            return "nil"
        case bool():
            return "bool"
        case int():
            return "int"
        case float():
            return "float"
        case complex():
            return "complex"
        case str():
            return "string"
    return "other"


def _equal_one(left: Any, right: Any) -> bool:
    kinds = _kind(left), _kind(right)
    if kinds[0] != kinds[1]:
        if "nil" in kinds:
            return False
        raise TemplateError("incompatible types for comparison")
    if kinds[0] == "other":
        if isinstance(left, Struct) and isinstance(right, Struct):
            return left.fields == right.fields
        raise TemplateError(f"non-comparable type {to_text(left)}: {type_name(left)}")
    same: bool = left == right
    return same


def _eq(left: Any, *others: Any) -> bool:
    if not others:
        raise TemplateError("missing argument for comparison")
    return any(_equal_one(left, other) for other in others)


def _ne(left: Any, right: Any) -> bool:
    return not _equal_one(left, right)


def _less(left: Any, right: Any) -> bool:
    for value in (left, right):
        if _kind(value) in {"nil", "other"}:
            raise TemplateError("invalid type for comparison")
    if _kind(left) != _kind(right):
        raise TemplateError("incompatible types for comparison")
    if _kind(left) in {"bool", "complex"}:
        raise TemplateError("invalid type for comparison")
    if isinstance(left, str):
        left, right = left.encode("utf-8", "surrogatepass"), right.encode("utf-8", "surrogatepass")
    less: bool = left < right
    return less


def _le(left: Any, right: Any) -> bool:
    return _less(left, right) or _equal_one(left, right)


def _gt(left: Any, right: Any) -> bool:
    return not _le(left, right)


def _ge(left: Any, right: Any) -> bool:
    return not _less(left, right)


def _len(value: Any) -> int:
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass"))
    if value is None:
        raise TemplateError("len of nil pointer")
    if isinstance(value, Mapping | Sequence):
        return len(value)
    raise TemplateError(f"len of type {type_name(value)}")


def _index(value: Any, *keys: Any) -> Any:
    if value is None and not keys:
        raise TemplateError("index of untyped nil")
    for key in keys:
        if isinstance(value, Mapping):
            if not isinstance(key, str):
                raise TemplateError(f"value has type {type_name(key)}; should be string")
            value = value.get(key)
        elif isinstance(value, Sequence):
            place = _place(key)
            units: Any = value.encode() if isinstance(value, str) else value
            if place >= len(units) or place < 0:
                raise TemplateError(f"index out of range: {key}")
            value = units[place]
        elif value is None:
            raise TemplateError("index of untyped nil")
        else:
            raise TemplateError(f"can't index item of type {type_name(value)}")
    return value


def _place(key: Any) -> int:
    if key is None:
        raise TemplateError("cannot index slice/array with nil")
    if isinstance(key, bool) or not isinstance(key, int):
        raise TemplateError(f"cannot index slice/array with type {type_name(key)}")
    return key


def _slice(value: Any, *bounds: Any) -> Any:
    if isinstance(value, str):
        if len(bounds) == 3:
            raise TemplateError("cannot 3-index slice a string")
        cut: Any = value.encode()
    elif isinstance(value, Sequence):
        cut = value
    else:
        raise TemplateError(f"can't slice item of type {type_name(value)}")
    if len(bounds) > 3:
        raise TemplateError(f"too many slice indexes: {len(bounds)}")
    places = [_place(bound) for bound in bounds]
    for place in places:
        if not 0 <= place <= len(cut):
            raise TemplateError(f"index out of range: {place}")
    low = places[0] if places else 0
    high = places[1] if len(places) > 1 else len(cut)
    if low > high:
        raise TemplateError(f"invalid slice index: {low} > {high}")
    return cut[low:high].decode("utf-8", "replace") if isinstance(value, str) else cut[low:high]


def _call(*_: Any) -> Any:
    raise TemplateError("call of a value that is no function")


_HTML = {"\0": "\ufffd", '"': "&#34;", "'": "&#39;", "&": "&amp;", "<": "&lt;", ">": "&gt;"}
_JS = {"\\": "\\\\", "'": "\\'", '"': '\\"', "<": "\\u003C", ">": "\\u003E", "&": "\\u0026", "=": "\\u003D"}


_MAX_ESCAPED = 1 << 22
"""Characters to escape one by one, which takes as long as many functions."""


def _joined(values: Sequence[Any]) -> str:
    text = sprint(["<no value>" if value is None else value for value in values])
    if len(text) > _MAX_ESCAPED:
        raise TemplateError("the text to escape is too large")
    return text


def _html(*values: Any) -> str:
    return "".join(_HTML.get(char, char) for char in _joined(values))


def _js(*values: Any) -> str:
    return "".join(_JS.get(char) or (char if char.isprintable() else _js_escape(char)) for char in _joined(values))


def _js_escape(char: str) -> str:
    return f"\\u{ord(char):04X}"


def _urlquery(*values: Any) -> str:
    return urllib.parse.quote_plus(_joined(values), safe="-_.~")


def _printf(form: Any, *values: Any) -> str:
    if not isinstance(form, str):
        raise TemplateError(f"wrong type for value; expected string; got {type_name(form)}")
    return sprintf(form, values)


_TYPESCRIPT = {"string": "string", "number": "number", "integer": "number", "boolean": "boolean", "array": "any[]",
               "object": "Record<string, any>", "null": "null"}  # fmt: skip


def typescript_type(value: Any) -> str:
    """A property's type as TypeScript, which gpt-oss reads tools in."""
    if not isinstance(value, Struct):
        return "any"
    choices = value.fields.get("AnyOf") or []
    if choices:
        return " | ".join(map(typescript_type, choices))
    names = value.fields.get("Type") or TypeNames()
    return " | ".join(_TYPESCRIPT.get(name, "any") for name in names) or "any"


LAZY = frozenset({"and", "or"})
"""Functions whose arguments are evaluated one by one, by the evaluator."""

FUNCTIONS: dict[str, Function] = {
    "and": lambda *_: None,
    "or": lambda *_: None,
    "not": lambda value: not is_true(value),
    "eq": _eq,
    "ne": _ne,
    "lt": _less,
    "le": _le,
    "gt": _gt,
    "ge": _ge,
    "len": _len,
    "index": _index,
    "slice": _slice,
    "call": _call,
    "print": lambda *values: sprint(values),
    "printf": _printf,
    "println": lambda *values: sprintln(values),
    "html": _html,
    "js": _js,
    "urlquery": _urlquery,
    # Ollama's own
    "json": to_json,
    "currentDate": lambda *_: date.today().isoformat(),
    "yesterdayDate": lambda *_: (date.today() - timedelta(days=1)).isoformat(),
    "toTypeScriptType": typescript_type,
}
