"""What several JSON schemas that hold for one value say of its properties, *merged*."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from omlx.engine.schemas.lookahead import without_names
from omlx.engine.schemas.merged import Merged
from omlx.engine.schemas.patterns import disjoint, matches, usable_alone
from omlx.engine.schemas.refs import Place, SchemaError, place_of

MAX_PROPERTIES = 1000
"""Of one object: the work grows with their square."""
TOO_MANY_PROPERTIES = f"an object of the JSON schema lists more than {MAX_PROPERTIES} properties"
_PATTERNS = 100
"""Patterns of one object's properties."""
_COMPARED = 20
"""Those that are compared each with each where some match the same names."""
_PAIRS = 500
"""Pairs of names and patterns that are looked at one by one."""


class _Properties:
    """What one schema says of properties."""

    def __init__(self, place: Place) -> None:
        schema = place.schema
        listed = _map(schema, "properties")
        self.listed = {name: place_of(inner, place) for name, inner in listed.items()}
        forbidden = [inner for inner in listed.values() if inner is False]
        self.declares = place.declares and "properties" in schema and (not listed or len(forbidden) < len(listed))
        self.patterns: dict[str, list[Place]] = {}
        self.additional: list[Place] | None = None
        if "additionalProperties" in schema:
            self.additional = [place_of(schema["additionalProperties"], place)]
        closed = self.additional is not None and self.additional[0].schema is False
        self.forbidden: dict[str, None] = {}
        loose = []
        for pattern, inner in _map(schema, "patternProperties").items():
            known = usable_alone(pattern)
            excluding = without_names(pattern) if closed and known is None else None
            if excluding and not self.listed.keys() & excluding[1]:
                # The compiler joins properties and the patterns that match them: only what is forbidden can be listed.
                known = usable_alone(excluding[0])
                self.forbidden |= dict.fromkeys(excluding[1] if known else ())
            if known is None:
                loose.append(place_of(inner, place))
            else:
                self.patterns.setdefault(known, []).append(place_of(inner, place))
        if loose:
            # Which names these patterns match cannot be told: any other name may be one.
            self.additional = [*([] if closed else self.additional or []), *loose]

    def of(self, name: str, compared: bool) -> list[Place]:
        """What its own lists say of a property; patterns that match a listed name hold as well."""
        if name in self.listed:
            return [self.listed[name]]
        if name in self.forbidden:
            return [Place(False, "")]
        if self.additional is None or (compared and any(matches(pattern, name) for pattern in self.patterns)):
            return []
        return self.additional


def merge_objects(merged: Merged, flat: Sequence[Place]) -> None:
    parts = [_Properties(place) for place in flat]
    for place in flat:
        required = place.schema.get("required")
        if isinstance(required, list):  # draft 3 said it of the property itself
            merged.required |= dict.fromkeys(name for name in required if isinstance(name, str))
    listed = (itertools.chain(part.listed, part.forbidden) for part in parts)
    names = dict.fromkeys(itertools.chain(*listed, merged.required))
    if len(names) > MAX_PROPERTIES:
        raise SchemaError(TOO_MANY_PROPERTIES)
    # Where they are too many the others' schema is taken to hold as well.
    compared = len(names) * sum(len(part.patterns) for part in parts) <= _PAIRS
    for name in names:
        merged.properties[name] = [place for part in parts for place in part.of(name, compared)]
    for part in parts:
        for pattern, places in part.patterns.items():
            merged.patterns[pattern] = [*merged.patterns.get(pattern, []), *places]
    for pattern in merged.patterns:
        merged.patterns[pattern] += [
            place for part in parts if pattern not in part.patterns for place in part.additional or []
        ]
    for part in parts:
        if part.additional is not None:
            merged.additional = [*(merged.additional or []), *part.additional]
    _property_names(merged, flat)
    if len(merged.patterns) > _PATTERNS:
        raise SchemaError(f'"patternProperties" may list {_PATTERNS} patterns at most')
    _separate(merged)
    _drop_repeated(merged)
    key = "unevaluatedProperties"
    unevaluated = [place_of(place.schema[key], place) for place in flat if key in place.schema]
    if unevaluated and merged.additional is None:
        merged.additional = unevaluated
    merged.closes = merged.additional is None and not merged.patterns and any(part.declares for part in parts)


def _property_names(merged: Merged, flat: Sequence[Place]) -> None:
    """`propertyNames`: a pattern, lengths or a list of names, where the object has no patterns of its own."""
    for place in flat:
        names = place.schema.get("propertyNames")
        if names is False:
            names = {"enum": []}
        if not isinstance(names, dict) or merged.patterns:
            continue
        listed = names.get("enum", [names["const"]] if "const" in names else None)
        pattern = usable_alone(names.get("pattern")) or _of_length(names)
        others = merged.additional if merged.additional is not None else [Place(True, "")]
        if isinstance(listed, list):
            allowed = dict.fromkeys(name for name in listed if isinstance(name, str))
            wrong = [name for name in merged.properties if name not in allowed]
            if not merged.properties or merged.additional is not None:
                merged.properties |= {name: others for name in allowed if name not in merged.properties}
        elif pattern is not None:
            wrong = [name for name in merged.properties if not matches(pattern, name)]
            merged.patterns = {pattern: others}
        else:
            continue
        merged.properties |= {name: [Place(False, "")] for name in wrong}
        merged.additional = [Place(False, "")]


def _of_length(names: dict[str, Any]) -> str | None:
    least, most = names.get("minLength", 0), names.get("maxLength", "")
    if not isinstance(least, int) or not isinstance(most, int | str) or not (least or most != ""):
        return None
    return rf"^[\s\S]{{{least},{most}}}$"


def _drop_repeated(merged: Merged) -> None:
    """Leave properties to a pattern that says the same of them: the compiler would join the two without end."""
    for pattern, places in merged.patterns.items():
        if len(merged.properties) > _PAIRS:
            return
        said = {id(place.schema) for place in places}
        targets = {place.schema.get("$ref") for place in places if isinstance(place.schema, dict)} - {None}
        for name, own in list(merged.properties.items()):
            ours = {place.schema.get("$ref") for place in own if isinstance(place.schema, dict)} - {None}
            same = {id(place.schema) for place in own} == said or (targets and targets == ours)
            if same and name not in merged.required and matches(pattern, name):
                del merged.properties[name]


def leave_out_patterns(merged: Merged) -> None:
    """Those that match a listed property, which obeys what they say all the same; it is closed to other names then."""
    for pattern, places in list(merged.patterns.items()):
        matching = [name for name in merged.properties if matches(pattern, name)]
        if matching:
            del merged.patterns[pattern]
            merged.additional = [Place(False, "")]
        for name in matching:
            merged.properties[name] = [*merged.properties[name], *places]


def _separate(merged: Merged) -> None:
    """Patterns that match the same names become one, whose properties obey what all of them say."""
    if len(merged.patterns) < 2 or disjoint([*merged.patterns]):
        return
    if len(merged.patterns) > _COMPARED:
        everything = [place for places in merged.patterns.values() for place in places]
        merged.patterns = {"|".join(f"(?:{pattern})" for pattern in merged.patterns): everything}
        return
    groups: list[dict[str, list[Place]]] = []
    for pattern, places in merged.patterns.items():
        touching = [group for group in groups if any(not disjoint([known, pattern]) for known in group)]
        groups = [group for group in groups if group not in touching]
        groups.append({pattern: places} | {known: found for group in touching for known, found in group.items()})
    merged.patterns = {}
    for group in groups:
        together = next(iter(group)) if len(group) == 1 else "|".join(f"(?:{pattern})" for pattern in group)
        merged.patterns[together] = [place for places in group.values() for place in places]


def _map(schema: dict[str, Any], key: str) -> dict[str, Any]:
    value = schema.get(key, {})
    if not isinstance(value, dict):
        raise SchemaError(f'"{key}" must be an object')
    return value
