"""How Ollama reads a JSON body: Go's `encoding/json` rules over msgspec structs, and Go's words when it fails.

A *body* is the first JSON value of a request, decoded into a *wire struct*. Keys match whatever their letter case,
unknown keys and anything behind the first value are ignored, a later duplicate wins and null means "not given".
Where msgspec refuses a body, lone surrogates are replaced, as Go does; Python's own JSON reader takes a last look, at
real mistakes: it needs several times the body's memory.
"""

from __future__ import annotations

import contextlib
import json
import re
import types
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, NamedTuple, NoReturn, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UnsetType


class Malformed(Exception):
    """The body cannot be read into the wire struct; the message is what the client gets, with status 400."""


class EmptyBody(Malformed):
    """There is no JSON value at all (only white space)."""


class Go(NamedTuple):
    """Note on a wire field (`Annotated[..., Go(...)]`): what Go's decoder knows beyond the Python type."""

    name: str = ""
    """Go's name of the type, for the error text; "" : derived from the Python type."""
    parse: Callable[[Any], Any] | None = None
    """Reads the raw JSON value itself; a ValueError's text becomes the answer, a TypeError is a wrong type."""
    sealed: bool = False
    """The Go type has its own reader: errors inside it are reported for the field as a whole."""
    item: type[Any] | None = None
    """For a list of plain objects: the `Schema` they are read by."""


class Schema(msgspec.Struct):
    """Base of structs that only check and prune: what is read by one stays a JSON object, in the client's key order.

    Keys without a field are dropped; a field that Go would always write is added with its default where it is missing.
    """


class WholeSchema(Schema):
    """The same, but keys without a field stay as the client sent them."""


class PartSchema(WholeSchema):
    """The same, of a part of a JSON schema: true and false are read as the objects that mean the same."""


class _Where(NamedTuple):
    root: str
    path: str
    sealed: bool = False

    def field(self, name: str) -> _Where:
        return self if self.sealed else _Where(self.root, f"{self.path}.{name}" if self.path else name)


_T = TypeVar("_T")
_Reader = Callable[[Any, _Where], Any]
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_PLACE = re.compile(r"\(byte (\d+)\)")
_SECOND_LOOK = 1 << 20
"""Bytes of the largest body that Python's own JSON reader may look at."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
"""An escape in JSON; group 1: a lone surrogate."""
_PRIMITIVES = {str: "string", bool: "bool", int: "int", float: "float64"}


def decode(body: bytes, kind: type[_T]) -> _T:
    """`body` as the wire struct `kind`. Raises Malformed (EmptyBody where nothing is there)."""
    return read(first_value(body), kind)


def read(value: Any, kind: type[_T]) -> _T:
    """A JSON value that is already parsed as `kind`; a `Schema` gives the pruned object. Raises Malformed."""
    if value is not None and not isinstance(value, dict):
        raise Malformed(f"json: cannot unmarshal {_go_kind(value)} into Go value of type api.{_go_name(kind)}")
    return cast(_T, _reader(cast(Any, kind))(value or {}, _Where(_go_name(kind), "")))


def _go_name(kind: type[Any]) -> str:
    """Go's name of a wire struct: `GO_NAME`, where the class has another name because that one is taken."""
    return str(getattr(kind, "GO_NAME", kind.__name__))


def first_value(body: bytes) -> Any:
    """The first JSON value in `body`, whatever follows it."""
    try:
        return msgspec.json.decode(body)
    except RecursionError:
        raise Malformed("exceeded max depth") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        trailing = _TRAILING.search(str(error))
    if trailing is not None:
        return msgspec.json.decode(body[: int(trailing.group(1)) - 1])
    if not body.strip(b" \t\r\n"):
        raise EmptyBody("missing request body")
    if b"\\ud" in body or b"\\uD" in body:
        with contextlib.suppress(msgspec.DecodeError, RecursionError):
            return msgspec.json.decode(_ESCAPE.sub(lambda match: rb"\ufffd" if match[1] else match[0], body))
    text = body.decode("utf-8", "replace")
    return _second_look(text) if len(body) <= _SECOND_LOOK else _quick_look(text)


def _quick_look(text: str) -> Any:
    """A large body gets no second look, which would hold Python's lock for seconds: only what msgspec says of it."""
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        raise Malformed("exceeded max depth") from None
    except msgspec.DecodeError as error:
        match = _PLACE.search(str(error))
    if match is None:
        raise Malformed("unexpected EOF")
    character = text.encode()[int(match[1]) : int(match[1]) + 4].decode("utf-8", "replace")[:1]
    raise Malformed(f"invalid character '{character}' looking for beginning of value")


def _second_look(text: str) -> Any:
    def refuse(constant: str) -> NoReturn:
        raise Malformed(f"invalid character '{constant[0]}' looking for beginning of value")

    start = len(text) - len(text.lstrip(" \t\r\n"))
    try:
        value, _ = json.JSONDecoder(parse_constant=refuse).raw_decode(text, start)
        plain = _SURROGATE.sub("\ufffd", json.dumps(value, ensure_ascii=False))
        return msgspec.json.decode(plain)
    except RecursionError:
        raise Malformed("exceeded max depth") from None
    except json.JSONDecodeError as error:
        raise Malformed(_syntax_text(text, error)) from None
    except (ValueError, msgspec.DecodeError):
        # Of the libraries' own limits: more than 4300 digits, or a float beyond all floats.
        raise Malformed("json: cannot unmarshal number: it is out of range") from None


def _syntax_text(text: str, error: json.JSONDecodeError) -> str:
    """Go's sentence for a syntax error that Python found."""
    if error.pos >= len(text.rstrip(" \t\r\n")) or error.msg.startswith("Unterminated string"):
        return "unexpected EOF"
    character = text[error.pos]
    shown = {"'": "\\'", "\\": "\\\\"}.get(
        character, character if character.isprintable() else f"\\x{ord(character):02x}"
    )
    situations = {
        "Expecting property name": "looking for beginning of object key string",
        "Illegal trailing comma": "looking for beginning of value",
        "Expecting ':'": "after object key",
        "Expecting ','": "after object key:value pair",
        "Invalid control": "in string literal",
        "Invalid \\": "in string escape code",
    }
    situation = next((phrase for start, phrase in situations.items() if error.msg.startswith(start)), None)
    return f"invalid character '{shown}' {situation or 'looking for beginning of value'}"


def _go_kind(value: Any) -> str:
    kinds: tuple[tuple[Any, str], ...] = (
        (bool, "bool"),
        (int | float, "number"),
        (str, "string"),
        (list, "array"),
        (dict, "object"),
    )
    return next((name for kind, name in kinds if isinstance(value, kind)), "null")


def _wrong(value: Any, where: _Where, go_type: str) -> NoReturn:
    kind = _go_kind(value)
    if isinstance(value, int | float) and go_type == "int" and kind == "number":
        kind = f"number {value!r}"
    raise Malformed(f"json: cannot unmarshal {kind} into Go struct field {where.root}.{where.path} of type {go_type}")


@cache
def _reader(kind: Any) -> _Reader:
    """The function that reads a JSON value (never null) into `kind`."""
    kind = _given_kind(kind)
    note = Go()
    if get_origin(kind) is Annotated:
        kind, *notes = get_args(kind)
        note = next((item for item in notes if isinstance(item, Go)), note)
    if note.parse is not None:
        return _custom_reader(note.parse, note.name)
    kind = _given_kind(kind)
    origin = get_origin(kind) or kind
    if origin is Any:
        return lambda value, where: value
    if origin in _PRIMITIVES:
        return _primitive_reader(origin, note.name or _PRIMITIVES[origin])
    if origin is list:
        (item,) = get_args(kind)
        return _list_reader(note.item or item, note)
    if origin is dict:
        return _dict_reader(get_args(kind)[1], note)
    if issubclass(origin, msgspec.Struct):
        return _struct_reader(origin, note.name or f"api.{_go_name(origin)}")
    raise TypeError(f"no reader for {kind}")


def _given_kind(kind: Any) -> Any:
    """Of "X or not given" the X."""
    if get_origin(kind) in {Union, types.UnionType}:
        return next(part for part in get_args(kind) if part not in {type(None), UnsetType})
    return kind


def _custom_reader(parse: Callable[[Any], Any], go_type: str) -> _Reader:
    def read(value: Any, where: _Where) -> Any:
        try:
            return parse(value)
        except ValueError as error:
            raise Malformed(str(error)) from None
        except TypeError:
            _wrong(value, where, go_type)

    return read


def _primitive_reader(kind: type, go_type: str) -> _Reader:
    def read(value: Any, where: _Where) -> Any:
        actual = type(value)
        if actual is kind:
            if kind is int and not -(2**63) <= value < 2**63:
                _wrong(value, where, go_type)
            return value
        if kind is float and actual is int:
            return float(value)
        _wrong(value, where, go_type)

    return read


def _zero(kind: Any, where: _Where) -> Any:
    """What null is inside an array or map: the type's zero value, as Go leaves it."""
    base = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    if base is Any:
        return None
    return _reader(base)({}, where) if issubclass(get_origin(base) or base, msgspec.Struct) else base()


class _Later:
    """The reader of a type, looked up at first use: a struct may contain itself."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind

    def __call__(self, value: Any, where: _Where) -> Any:
        return _reader(self.kind)(value, where)


def _list_reader(item: Any, note: Go) -> _Reader:
    read_item = _Later(item)
    base = get_args(item)[0] if get_origin(item) is Annotated else item
    go_type = note.name or f"[]{_PRIMITIVES.get(base, getattr(base, '__name__', 'interface {}'))}"

    def read(value: Any, where: _Where) -> list[Any]:
        if type(value) is not list:
            _wrong(value, where, go_type)
        inside = where._replace(sealed=True) if note.sealed else where
        return [_zero(item, inside) if entry is None else read_item(entry, inside) for entry in value]

    return read


def _dict_reader(item: Any, note: Go) -> _Reader:
    read_item = _Later(item)
    go_type = note.name or f"map[string]{_PRIMITIVES.get(item, 'interface {}')}"

    def read(value: Any, where: _Where) -> dict[str, Any]:
        if type(value) is not dict:
            _wrong(value, where, go_type)
        inside = where._replace(sealed=True) if note.sealed else where
        return {key: _zero(item, inside) if entry is None else read_item(entry, inside) for key, entry in value.items()}

    return read


def _struct_reader(kind: type[msgspec.Struct], go_type: str) -> _Reader:
    hints = get_type_hints(kind, include_extras=True)
    fields = {
        wire: (name, wire, _reader(hints[name]))
        for name, wire in zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)
    }
    folded = {wire.lower(): field for wire, field in fields.items()}
    kept, whole = issubclass(kind, Schema), issubclass(kind, WholeSchema)
    always = msgspec.to_builtins(kind()) if kept else {}
    part = issubclass(kind, PartSchema)

    def read(value: Any, where: _Where) -> Any:
        if part and type(value) is bool:
            return {} if value else {"not": {}}
        if type(value) is not dict:
            _wrong(value, where, go_type)
        values = {}
        for key, entry in value.items():
            field = fields.get(key) or folded.get(key.lower())
            if field is None and whole:
                values[key] = entry
            elif field is not None and entry is not None:
                name, wire, read_field = field
                values[wire if kept else name] = read_field(entry, where.field(wire))
        if not kept:
            return kind(**values)
        return values | {name: default for name, default in always.items() if name not in values}

    return read
