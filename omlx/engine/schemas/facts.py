"""What can be said of the values of a JSON schema without looking at any: which types, which of a few values, which
properties. From these *facts* it follows that two schemas have no value in common, and what the opposite of one is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from omlx.engine.schemas.lookahead import split
from omlx.engine.schemas.refs import Place, place_of

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
EXCEPT = "\0except"
"""A keyword of ours: values that are not allowed."""
_DEPTH = 3
"""Levels of properties that are compared."""
_MOST = 16
"""Alternatives that an opposite may have."""

Expand = Callable[[Iterable[Place]], "list[Place] | None"]
"""Places whose values obey all of those given, without references and `allOf`; None where there are no such values."""


def types_of(value: Any) -> set[str]:
    """The types that `type` allows; a number that may be whole may be an integer as well."""
    names = {value} if isinstance(value, str) else set(value) if isinstance(value, list) else set(TYPES)
    return names | {"integer"} if "number" in names else names


def type_of(value: Any) -> str:
    """The narrowest JSON type of a value."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "integer" if isinstance(value, int) or value.is_integer() else "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def spelled(value: Any) -> str:
    """Equal JSON values have the same spelling (1 and 1.0; true is no number)."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, list):
        return "[" + ",".join(map(spelled, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(sorted(json.dumps(key) + spelled(inner) for key, inner in value.items())) + "}"
    return json.dumps(value)


def with_values(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with `enum` for an `anyOf` or `oneOf` whose alternatives only list values; itself without such."""
    found = schema
    for key in ("anyOf", "oneOf"):
        spellings = _listed(schema[key]) if key in schema and isinstance(schema[key], list) else None
        if spellings is None:
            continue
        values = [value for spelling, (value, count) in spellings.items() if key == "anyOf" or count == 1]
        before = found.get("enum")
        if isinstance(before, list):
            both = {spelled(value) for value in before}
            values = [value for value in values if spelled(value) in both]
        found = {name: inner for name, inner in found.items() if name != key} | {"enum": values}
    return found


def _listed(options: list[Any]) -> dict[str, tuple[Any, int]] | None:
    """Spelling → the value and how many of the options have it; None where one is more than a list of values."""
    found: dict[str, tuple[Any, int]] = {}
    for option in options:
        if not isinstance(option, dict) or not option.keys() & ASSERTIONS <= {"const", "enum", "type"}:
            return None
        values = [option["const"]] if "const" in option else option.get("enum")
        if not isinstance(values, list) or ("const" in option and "enum" in option):
            return None
        allowed = types_of(option.get("type"))
        own = {spelled(value): value for value in values if type_of(value) in allowed}
        for spelling, value in own.items():
            found[spelling] = (value, found.get(spelling, (value, 0))[1] + 1)
    return found


class Facts(NamedTuple):
    types: set[str]
    values: set[str] | None
    """Spellings of all values that are allowed; None: many."""
    required: set[str]
    properties: dict[str, list[Place]]
    closed: bool
    """Nothing but `properties` is allowed."""


def facts(flat: Iterable[Place], *, lowered: bool = False) -> Facts:
    """`flat`: places as `Expand` gives them. `lowered`: of what they become, where an object that lists properties has
    no others, and a schema that lists properties is an object's."""
    found = Facts(set(TYPES), None, set(), {}, False)
    places = list(flat)
    for place in places:
        schema = place.schema
        types, values, closed = found.types, found.values, found.closed
        if "type" in schema:
            types = types & types_of(schema["type"])
        for listed in ([schema["const"]] if "const" in schema else None, schema.get("enum")):
            if isinstance(listed, list):
                spellings = {spelled(value) for value in listed}
                values = spellings if values is None else values & spellings
                types = types & {type_of(value) for value in listed}
        properties = schema.get("properties")
        if isinstance(properties, dict):
            for name, inner in properties.items():
                found.properties.setdefault(name, []).append(place_of(inner, place))
            if "patternProperties" not in schema:
                closed = closed or schema.get("additionalProperties") is False
                closed = closed or (lowered and "additionalProperties" not in schema and place.declares)
        required = schema.get("required")
        names = required if isinstance(required, list) else []
        found.required.update(name for name in names if isinstance(name, str))
        found = found._replace(types=types, values=values, closed=closed)
    if found.values is not None:
        excepted = [value for place in places for value in _excepted(place.schema)]
        found = found._replace(values=found.values - {spelled(value) for value in excepted})
    if lowered and found.types == set(TYPES) and found.values is None and (found.properties or found.required):
        found = found._replace(types={"object"})
    return found


def _excepted(schema: dict[str, Any]) -> list[Any]:
    values = schema.get(EXCEPT)
    return values if isinstance(values, list) else []


def possible(flat: Iterable[Place], expand: Expand) -> bool:
    """False where the types and values of the whole or of a required property rule each other out."""
    whole = facts(flat)
    if not whole.types or whole.values == set():
        return False
    for name in whole.required & whole.properties.keys():
        inner = expand(whole.properties[name])
        if inner is None:
            return False
        said = facts(inner)
        if not said.types or said.values == set():
            return False
    return True


def apart(one: Facts, other: Facts, expand: Expand, depth: int = _DEPTH) -> bool:
    """No value obeys both."""
    if not one.types & other.types:
        return True
    if one.values is not None and other.values is not None and not one.values & other.values:
        return True
    if one.types & other.types != {"object"} or not depth:
        return False
    for this, that in ((one, other), (other, one)):
        for name in this.required:
            if that.closed and name not in that.properties:
                return True
            if name in that.properties:
                flat, flat_too = expand(this.properties.get(name, [])), expand(that.properties[name])
                if flat is None or flat_too is None or apart(facts(flat), facts(flat_too), expand, depth - 1):
                    return True
    return False


class Opposites:
    """Schemas for "not": each is a list of alternatives. The same schema gets the same ones again."""

    def __init__(self, resolve: Callable[[Place], Place]) -> None:
        self._resolve = resolve
        self._made: dict[int, tuple[Any, list[Any] | None]] = {}

    def of(self, place: Place, depth: int = 12) -> list[Place] | None:
        """Alternatives that together are what `place` is not; None where they cannot be written as a schema."""
        made = self._opposite(place, depth)
        return None if made is None else [place._replace(schema=schema, declares=False) for schema in made]

    def _opposite(self, place: Place, depth: int) -> list[Any] | None:
        schema = place.schema
        if not isinstance(schema, dict):
            return [] if schema is True else [True]
        if id(schema) not in self._made:
            self._made[id(schema)] = (schema, None)  # a schema that is within itself has no opposite
            self._made[id(schema)] = (schema, self._of_all(place, depth) if depth else None)
        return self._made[id(schema)][1]

    def _of_all(self, place: Place, depth: int) -> list[Any] | None:
        found: list[Any] = []
        for key in place.schema:
            made = self._of_keyword(key, place, depth - 1)
            if made is None or len(found) + len(made) > _MOST:
                return None
            found += made
        return found

    def _of_keyword(self, key: str, place: Place, depth: int) -> list[Any] | None:
        value = place.schema[key]
        match key, value:
            case "$ref", str():
                target = self._resolve(place)
                return self._opposite(target, depth) if target.base == place.base else None
            case "type", _:
                others = [name for name in TYPES if name not in types_of(value)]
                if "integer" in types_of(value) and "number" in others:
                    others.remove("number")  # numbers that are not whole: no schema says that
                return [{"type": others}] if others else []
            case "const", _:
                return [{EXCEPT: [value]}]
            case "enum", list():
                return [{EXCEPT: value}]
            case "required", list():
                return [{"type": "object", "properties": {name: False}} for name in value if isinstance(name, str)]
            case "properties", dict():
                return self._of_properties(value, place, depth)
            case "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum", int() | float():
                if isinstance(value, bool):
                    return None
                beyond = {"minimum": "exclusiveMaximum", "maximum": "exclusiveMinimum", "exclusiveMinimum": "maximum",
                          "exclusiveMaximum": "minimum"}[key]  # fmt: skip
                return [{"type": "number", beyond: value}]
            case "minLength" | "minItems", int():
                kind, most = ("string", "maxLength") if key == "minLength" else ("array", "maxItems")
                return [{"type": kind, most: value - 1}] if value > 0 else []
            case "maxLength" | "maxItems", int():
                kind, least = ("string", "minLength") if key == "maxLength" else ("array", "minItems")
                return [{"type": kind, least: value + 1}]
            case "pattern", str():
                ways = value.split("|")
                ahead = "|".join(way[1:] if way.startswith("^") else f".*{way}" for way in ways)
                parts = split(f"^(?!{ahead})")
                return None if parts is None else [{"type": "string", "allOf": [{"pattern": part} for part in parts]}]
            case "not", _:
                return [value]
            case "allOf", list():
                each = [self._opposite(place_of(inner, place), depth) for inner in value]
                return None if None in each else [made for part in each for made in part or ()]
            case "anyOf", list():
                each = [self._opposite(place_of(inner, place), depth) for inner in value]
                if None in each:
                    return None
                return [{"allOf": [{"anyOf": part} for part in each if part is not None]}]
            case _:
                return None if key in ASSERTIONS else []

    def _of_properties(self, properties: dict[str, Any], place: Place, depth: int) -> list[Any] | None:
        found = []
        for name, inner in properties.items():
            made = self._opposite(place_of(inner, place), depth)
            if made is None:
                return None
            if made:
                wrong = made[0] if len(made) == 1 else {"anyOf": made}
                found.append({"type": "object", "required": [name], "properties": {name: wrong}})
        return found


ASSERTIONS = frozenset(
    {
        "$ref", "$dynamicRef", "$recursiveRef", "type", "const", "enum", "required", "properties", "minimum", "maximum",
        "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "pattern", "format", "minItems",
        "maxItems", "items", "prefixItems", "additionalItems", "contains", "minContains", "maxContains", "uniqueItems",
        "unevaluatedItems", "unevaluatedProperties", "minProperties", "maxProperties", "patternProperties",
        "propertyNames", "additionalProperties", "dependencies", "dependentRequired", "dependentSchemas", "not", "if",
        "then", "else", "allOf", "anyOf", "oneOf", EXCEPT,
    }
)  # fmt: skip
"""All keywords that a value can fail."""
