"""Merged schemas *written* as the grammar compiler reads them, and the parts removed that no value obeys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from omlx.engine.schemas.facts import TYPES
from omlx.engine.schemas.merged import Merged
from omlx.engine.schemas.refs import Place

_MOST_EACH = 64
"""Properties of which one at least is wanted that are written out as alternatives."""


def any_of(options: Iterable[Any]) -> Any:
    """A schema for what obeys one of them."""
    alternatives: list[Any] = []
    for option in options:
        if option is True or option == {}:
            return True
        for one in option["anyOf"] if isinstance(option, dict) and option.keys() == {"anyOf"} else [option]:
            if one is not False and one not in alternatives[-_MOST_EACH:]:
                alternatives.append(one)
    if not alternatives:
        return False
    return alternatives[0] if len(alternatives) == 1 else {"anyOf": alternatives}


def write(merged: Merged, value: Callable[[Sequence[Place]], Any], rest: Sequence[Any]) -> Any:
    """`value`: the schema of a property or an item. `rest`: schemas that hold as well."""
    out: dict[str, Any] = {}
    if merged.types != set(TYPES):
        implied = {"integer"} if "number" in merged.types else set()
        types = [name for name in TYPES if name in merged.types - implied]
        out["type"] = types[0] if len(types) == 1 else types
    if merged.values is not None:
        out["enum"] = merged.values
    counts = ("minProperties", "maxProperties")
    out |= {key: limit for key, limit in merged.limits.items() if key not in counts}
    if "array" in merged.types:
        if merged.prefix:
            out["prefixItems"] = [value(places) for places in merged.prefix]
        if merged.items is not None:
            out["items"] = value(merged.items)
    also = [*merged.also, *rest]
    if "object" in merged.types:
        _write_object(out, merged, value, closes=not rest)
        also += _write_counts(out, merged)
    if also:
        out["allOf"] = also
    return out


def _write_object(
    out: dict[str, Any], merged: Merged, value: Callable[[Sequence[Place]], Any], *, closes: bool
) -> None:
    if merged.properties:
        out["properties"] = {name: value(places) for name, places in merged.properties.items()}
    if merged.required:
        out["required"] = list(merged.required)
    if merged.patterns:
        out["patternProperties"] = {pattern: value(places) for pattern, places in merged.patterns.items()}
    if merged.additional is not None:
        out["additionalProperties"] = value(merged.additional)
    elif closes and merged.closes:
        out["additionalProperties"] = False


def _write_counts(out: dict[str, Any], merged: Merged) -> list[Any]:
    """`minProperties` and `maxProperties`, where the compiler or a choice of required properties can follow them."""
    least, most = merged.limits.get("minProperties", 0), merged.limits.get("maxProperties")
    properties: dict[str, Any] = out.get("properties", {})
    listed = [name for name, schema in properties.items() if schema is not False]
    optional = [name for name in listed if name not in merged.required]
    closed = out.get("additionalProperties") is False and not merged.patterns
    if most is not None and most == len(merged.required):
        # Those that are required and no others.
        out["properties"] = {name: properties[name] if name in merged.required else False for name in properties}
        out["additionalProperties"] = False
        out.pop("patternProperties", None)
    elif most is not None and not (closed and most >= len(listed)) and (not optional or (most == 1 and least <= 1)):
        out["maxProperties"] = most
    if least <= len(merged.required):
        return []
    if not optional or (least == 1 and closed and not merged.required):
        out["minProperties"] = least
    elif least == len(merged.required) + 1 and len(optional) <= _MOST_EACH:
        ways = [{"type": "object", "required": [name]} for name in optional]
        if not closed:
            none = {"properties": dict.fromkeys(optional, False), "minProperties": least}
            ways.append({"type": "object", **none})
        return [{"anyOf": [*ways, *_no_object(merged)]}]
    elif closed and least >= len(listed):
        return [{"anyOf": [{"type": "object", "required": listed}, *_no_object(merged)]}]
    return []


def _no_object(merged: Merged) -> list[Any]:
    others = [name for name in TYPES if name in merged.types and name != "object"]
    return [{"type": others}] if others else []


# ---------------------------------------------------------------- what nothing obeys
def inhabited(top: Any, definitions: dict[str, Any]) -> Any:
    """The schema with its definitions, without the parts that no finite value obeys; False where nothing is left."""
    known: set[str] = set()
    before = -1
    while before < len(known):
        before = len(known)
        # Most lead to definitions that come later.
        for name in reversed(definitions):
            if name not in known and _possible(definitions[name], known):
                known.add(name)
    if not _possible(top, known):
        return False
    kept = {name: _without(definitions[name], known) for name in definitions if name in known}
    left = _without(top, known)
    return {**left, "$defs": kept} if kept and isinstance(left, dict) else left


def _possible(schema: Any, known: set[str]) -> bool:
    if not isinstance(schema, dict):
        return bool(schema)
    if "$ref" in schema:
        return schema["$ref"].removeprefix("#/$defs/") in known
    if "anyOf" in schema and not any(_possible(option, known) for option in schema["anyOf"]):
        return False
    if not all(_possible(part, known) for part in schema.get("allOf", ())):
        return False
    if schema.get("type") == "object":
        properties, other = schema.get("properties", {}), schema.get("additionalProperties", True)
        return all(_possible(properties.get(name, other), known) for name in schema.get("required", ()))
    if schema.get("type") == "array":
        least, prefix = schema.get("minItems", 0), schema.get("prefixItems", [])
        parts = [*prefix[:least], *([schema.get("items", True)] if least > len(prefix) else [])]
        return all(_possible(part, known) for part in parts)
    return True


def _without(schema: Any, known: set[str]) -> Any:
    if not isinstance(schema, dict):
        return schema
    if not _possible(schema, known):
        return False
    out = dict(schema)
    for key in ("properties", "patternProperties"):
        if key in out:
            out[key] = {name: _without(inner, known) for name, inner in out[key].items()}
    for key in ("items", "additionalProperties"):
        if key in out:
            out[key] = _without(out[key], known)
    for key in ("prefixItems", "allOf"):
        if key in out:
            out[key] = [_without(inner, known) for inner in out[key]]
    if "anyOf" in out:
        out["anyOf"] = [_without(inner, known) for inner in out["anyOf"] if _possible(inner, known)]
    return out
