"""The *ways* to call a tool: lists of arguments, of which a call has one.

Families that write each argument by itself cannot be held to a schema as a whole. What it says of several arguments
(`anyOf`, `oneOf`, `if`, `not`, dependencies, `minProperties`) is written out: each way lists the arguments that one
combination of alternatives allows, and which of them it requires.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from omlx.prompting.tools.parameters import ANNOTATIONS, Parameter, choices_of, parameters_of, target

MAX_WAYS = 16
"""Where there are more, the arguments of all alternatives are allowed together."""
_DEPTH = 8
"""Nested references and parts that are followed."""
_OPPOSITES = 4
"""Schemas for the opposite of an alternative of a `oneOf` that are written out at most."""

Parts = list[Mapping[str, Any]]
"""Schemas that hold together, each looked at for its `properties` and `required` only."""


class _TooManyWays(Exception):
    pass


def ways_of(schema: Mapping[str, Any]) -> list[list[Parameter]]:
    """At least one; the arguments of each in the order of the schema."""
    try:
        found = _ways(schema, schema, _DEPTH)
    except _TooManyWays:
        found = []
    listed = parameters_of(schema)
    order = {parameter.name: at for at, parameter in enumerate(listed)}
    ways: list[list[Parameter]] = []
    for parts in found:
        way = _parameters(parts)
        if way is None:
            continue
        way.sort(key=lambda parameter: order.get(parameter.name, len(order)))
        ways += [one for one in _at_least(way, schema.get("minProperties")) if one not in ways]
    return ways if 0 < len(ways) <= MAX_WAYS else [listed]


def _ways(schema: Any, root: Mapping[str, Any], depth: int) -> list[Parts]:
    """Lists of schemas; all schemas of one list must hold. Raises _TooManyWays."""
    if schema is False:
        return []
    if not isinstance(schema, Mapping):
        return [[]]
    if not depth:
        raise _TooManyWays
    found: list[Parts] = [[schema]]
    for choice in _choices(schema, root, depth - 1):
        found = [[*one, *other] for one, other in itertools.product(found, choice)]
        if len(found) > 4 * MAX_WAYS:
            raise _TooManyWays
    return found


def _choices(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Iterator[list[Parts]]:
    """The choices beside the schema's own lists; one alternative of each must hold."""
    if "$ref" in schema:
        yield _ways(target(schema, root), root, depth)
    for part in _list(schema.get("allOf")):
        yield _ways(part, root, depth)
    if any_of := _list(schema.get("anyOf")):
        yield [way for option in any_of for way in _ways(option, root, depth)]
    if one_of := _list(schema.get("oneOf")):
        yield list(_one_of(one_of, root, depth))
    if "not" in schema and (opposites := _opposites(schema["not"])) is not None:
        yield opposites
    if "if" in schema and ("then" in schema or "else" in schema):
        opposites = _opposites(schema["if"])
        if opposites is not None:
            held = itertools.product(_ways(schema["if"], root, depth), _ways(schema.get("then"), root, depth))
            others = itertools.product(opposites, _ways(schema.get("else"), root, depth))
            yield [[*one, *other] for one, other in (*held, *others)]
    for key in ("dependentRequired", "dependentSchemas", "dependencies"):
        dependencies = schema.get(key)
        for name, needed in dependencies.items() if isinstance(dependencies, Mapping) else ():
            wanted = {"required": needed} if isinstance(needed, list) else needed
            yield [
                [{"properties": {name: False}}],
                *([{"required": [name]}, *way] for way in _ways(wanted, root, depth)),
            ]


def _one_of(options: list[Any], root: Mapping[str, Any], depth: int) -> Iterator[Parts]:
    """Each alternative, with the opposite of the others where that can be written as a schema."""
    for at, option in enumerate(options):
        ways = _ways(option, root, depth)
        for other in (*options[:at], *options[at + 1 :]):
            opposites = None if _apart(option, other, root) else _opposites(other)
            if opposites is not None and len(opposites) <= _OPPOSITES:
                ways = [[*way, *opposite] for way in ways for opposite in opposites]
            if len(ways) > 4 * MAX_WAYS:
                raise _TooManyWays
        yield from ways


def _opposites(schema: Any) -> list[Parts] | None:
    """Alternatives that together are the opposite of a schema; None where properties cannot express it."""
    if not isinstance(schema, Mapping) or not schema.keys() <= {"properties", "required", "type"} | ANNOTATIONS:
        return None
    if schema.get("type", "object") != "object":
        return None
    properties = schema.get("properties", {})
    if not isinstance(properties, Mapping):
        return None
    missing: list[Parts] = [[{"properties": {name: False}}] for name in _names(schema)]
    return missing + [
        [{"required": [name], "properties": {name: {"not": inner}}}] for name, inner in properties.items()
    ]


def _apart(one: Any, other: Any, root: Mapping[str, Any]) -> bool:
    """Whether no value of some required argument is allowed by both."""
    pair = [target(schema, root) or schema if isinstance(schema, Mapping) else {} for schema in (one, other)]
    lists = [part.get("properties") if isinstance(part, Mapping) else None for part in pair]
    if not all(isinstance(listed, Mapping) for listed in lists):
        return False
    for name in {name for part in pair for name in _names(part)}:
        values = [_values(listed.get(name)) for listed in lists if isinstance(listed, Mapping)]
        if all(values) and not any(value in values[1] for value in values[0]):
            return True
    return False


def _values(schema: Any) -> list[Any]:
    return choices_of(schema) if isinstance(schema, Mapping) else []


def _parameters(parts: Parts) -> list[Parameter] | None:
    """The arguments that the schemas list together; None where one is required and forbidden."""
    schemas: dict[str, list[Any]] = {}
    required: set[str] = set()
    for part in parts:
        properties = part.get("properties")
        for name, inner in properties.items() if isinstance(properties, Mapping) else ():
            known = schemas.setdefault(name, [])
            if inner not in known:
                known.append(inner)
        required.update(_names(part))
    for name in required:
        schemas.setdefault(name, [])
    for part in parts:
        for name in _others(part, schemas):
            schemas[name].append(part["additionalProperties"])
    if any(False in schemas[name] for name in required):
        return None
    return [Parameter(name, _joined(found), name in required) for name, found in schemas.items() if False not in found]


def _joined(schemas: list[Any]) -> Any:
    return schemas[0] if len(schemas) == 1 else {"allOf": schemas} if schemas else {}


def _others(part: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """The names that `additionalProperties` of a schema applies to."""
    if part.get("additionalProperties", True) in (True, {}) or "patternProperties" in part:
        return []
    listed = part.get("properties")
    return [name for name in names if not isinstance(listed, Mapping) or name not in listed]


def _at_least(way: list[Parameter], least: Any) -> Iterable[list[Parameter]]:
    """`minProperties`, where it is one more than the required arguments: one way per optional argument."""
    needed = sum(parameter.required for parameter in way)
    if least != needed + 1 or isinstance(least, bool):
        return [way]
    return [
        [one._replace(required=True) if one is chosen else one for one in way] for chosen in way if not chosen.required
    ]


def _names(schema: Mapping[str, Any]) -> list[str]:
    return [name for name in _list(schema.get("required")) if isinstance(name, str)]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
