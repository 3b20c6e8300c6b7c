"""The *parameters* of a tool: what its JSON schema says of each argument, wherever in the schema that stands.

Some families write each argument by itself, as text or as JSON: which of both it may be follows from here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

_DEPTH = 8
"""References and parts of parts that are followed."""
ANNOTATIONS = frozenset({"title", "description", "default", "examples", "deprecated", "$comment"})
"""Keywords that allow every value."""
_VALUE = "omlx-value"
_RESOURCE = "urn:omlx:tool"


class Parameter(NamedTuple):
    name: str
    schema: Any
    required: bool


def parameters_of(schema: Mapping[str, Any], root: Mapping[str, Any] | None = None) -> list[Parameter]:
    """The arguments that a schema lists, itself or by `$ref`, `allOf`, `anyOf` and `oneOf`, in its order.

    `root`: the schema that it is a part of; None: it is the whole.
    """
    schemas: dict[str, list[Any]] = {}
    required: set[str] = set()
    for part, always in _parts(schema, schema if root is None else root, _DEPTH):
        properties = part.get("properties")
        for name, inner in properties.items() if isinstance(properties, Mapping) else ():
            schemas.setdefault(name, []).append(inner)
        names = part.get("required")
        if always and isinstance(names, list):
            required.update(name for name in names if isinstance(name, str))
    return [
        Parameter(name, found[0] if len(found) == 1 else {"allOf": found}, name in required)
        for name, found in schemas.items()
        if False not in found
    ]


def _parts(schema: Any, root: Mapping[str, Any], depth: int, always: bool = True) -> Iterator[tuple[Any, bool]]:
    """A schema and the schemas that hold with it, and whether they always do."""
    if not isinstance(schema, Mapping) or not depth:
        return
    yield schema, always
    yield from _parts(target(schema, root), root, depth - 1, always)
    for key in ("allOf", "anyOf", "oneOf"):
        for part in _list(schema.get(key)):
            yield from _parts(part, root, depth - 1, always and key == "allOf")


def schema_types(schema: Any, root: Mapping[str, Any] | None = None, depth: int = _DEPTH) -> set[str]:
    """JSON types that a schema allows; none where it does not say. `root`: where its references lead."""
    if not isinstance(schema, Mapping) or not depth:
        return set()
    kind = schema.get("type")
    types = {kind} if isinstance(kind, str) else {name for name in _list(kind) if isinstance(name, str)}
    for key in ("anyOf", "oneOf"):
        for choice in _list(schema.get(key)):
            types |= schema_types(choice, root, depth - 1)
    if not types:
        types = {name for value in choices_of(schema) for name in types_of_value(value)}
    for part in (target(schema, root or {}), *_list(schema.get("allOf"))):
        types = types or schema_types(part, root, depth - 1)
    return types


def types_of_value(value: Any) -> set[str]:
    match value:
        case None:
            return {"null"}
        case bool():
            return {"boolean"}
        case int():
            return {"integer", "number"}
        case float():
            return {"number", "integer"} if value.is_integer() else {"number"}
        case list():
            return {"array"}
        case dict():
            return {"object"}
    return {"string"}


def choices_of(schema: Mapping[str, Any]) -> list[Any]:
    return [schema["const"]] if "const" in schema else _list(schema.get("enum"))


def resolved(schema: Any, root: Mapping[str, Any]) -> Any:
    """The schema, or what it refers to where it says nothing else."""
    for _ in range(_DEPTH):
        if not isinstance(schema, Mapping) or not schema.keys() <= {"$ref"} | ANNOTATIONS or "$ref" not in schema:
            break
        schema = target(schema, root)
    return schema


def by_itself(schema: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of one argument as a whole of its own: its references still lead into `root`."""
    if not isinstance(schema, dict):
        return {} if schema is not False else {"enum": []}
    if not _refers(schema):
        return schema
    own = root.get("$id", root.get("id"))
    resource = own.partition("#")[0] if isinstance(own, str) and own.partition("#")[0] else _RESOURCE
    definitions = root.get("$defs")
    inner = definitions if isinstance(definitions, Mapping) else {}
    whole = {**root, "$id": resource, "$defs": {**inner, _VALUE: schema}}
    return {"$ref": f"{resource}#/$defs/{_VALUE}", "$defs": {"tool": whole}}


def _refers(value: Any) -> bool:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Mapping):
            if any(key in one for key in ("$ref", "$dynamicRef", "$recursiveRef")):
                return True
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
    return False


def target(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Any:
    """What the schema's `$ref` leads to within `root`; None without one, or where it leads elsewhere."""
    reference = schema.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found: Any = root
    for part in reference[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
