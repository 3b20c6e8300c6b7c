"""*Lowering* writes a JSON schema of any draft in the few keywords that the grammar compiler follows exactly.

References and `allOf` are resolved into one schema per value; `anyOf`, `oneOf`, `if`, `not` and dependencies become
alternatives, each with all that holds beside it. An object can then be closed (no properties but those listed)
without losing what another part of the schema lists. What no grammar can follow is left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from omlx.engine.schemas.facts import ASSERTIONS, Facts, Opposites, apart, facts, possible, types_of, with_values
from omlx.engine.schemas.merge import merge
from omlx.engine.schemas.refs import REFERENCES, Place, References, SchemaError, place_of
from omlx.engine.schemas.write import any_of, inhabited, write

MAX_SCHEMAS = 50_000
"""Schemas in the lowered form at most."""
MAX_WRITTEN = 25_000
"""Properties in them: the compiler takes 50,000 schemas, and a property is two at least."""
MAX_BRANCHES = 64
"""Combinations of the alternatives of one value that are written out."""
_ALL_BRANCHES = 4000
"""Those of the whole schema."""
_TRIED = 20_000
"""Schemas and properties in combinations that are checked for contradictions."""
_STEPS = 150_000
"""Schemas and properties that are visited in all."""
_COMPARED = 40
"""Alternatives of a `oneOf` that are compared with each other at most."""
_EXCLUSIONS = 8
"""Combinations of what an alternative of a `oneOf` must not be, so that no other one holds."""
_FEW_VALUES = 20
"""An `enum` of at most so many values is repeated where it is used, a longer one becomes a definition."""

_LONGEST_CHAIN = 100
"""References that only lead to a reference."""
_ITSELF = '"$ref" leads to itself'

_CHOICES = ("anyOf", "oneOf", "if", "then", "else", "not", "dependencies", "dependentRequired", "dependentSchemas")
_WITH_SCHEMAS = ASSERTIONS & {
    *_CHOICES, *REFERENCES, "allOf", "properties", "patternProperties", "additionalProperties", "propertyNames",
    "items", "prefixItems", "additionalItems", "unevaluatedProperties", "unevaluatedItems",
}  # fmt: skip

Group = list[list[Place]]
"""Alternatives, each a list of places that hold together."""


class TooManySchemas(SchemaError):
    """It becomes too many schemas; fewer in the brief form (see `lower`)."""


def lower(root: dict[str, Any], *, narrow: bool = False, brief: bool = False) -> dict[str, Any]:
    """The schema in the compiler's terms. Raises SchemaError.

    `narrow`: no patterns that match a listed property; the compiler would join schemas that contain themselves.
    `brief`: for schemas that become too large otherwise. `oneOf` is `anyOf`; `not`, `if` and dependencies are left out.
    """
    return _Lowering(root, narrow, brief).whole()


class _Lowering:
    def __init__(self, root: dict[str, Any], narrow: bool, brief: bool) -> None:
        self._narrow, self._brief = narrow, brief
        self._references = References(root)
        self._draft = str(root.get("$schema"))
        self._opposites = Opposites(lambda place: self._references.resolve("$ref", place.schema["$ref"], place.base))
        self._names: dict[tuple[tuple[int, bool], ...], tuple[str, list[Place]]] = {}
        self._waiting: list[tuple[str, list[Place]]] = []
        self._plain: dict[int, tuple[Any, Any]] = {}
        """Schemas and what they are without `$ref`, `allOf` and alternatives, by the schema's id."""
        self._listing: dict[int, tuple[Any, Any]] = {}
        """Schemas, and what `with_values` makes of them, by the schema's id."""
        self._small: dict[int, tuple[Any, Any]] = {}
        """Schemas without schemas in them, and what they become, by their id."""
        self._within: set[frozenset[int]] = set()
        self._written = self._properties = self._branches = self._steps = self._tried = 0

    def whole(self) -> dict[str, Any]:
        top = self._schema([self._references.root])
        definitions: dict[str, Any] = {}
        while self._waiting:
            name, places = self._waiting.pop()
            definitions[name] = self._schema(places)
        count = inhabited(top, definitions)
        if count is False:
            raise SchemaError("no value obeys it")
        return count if isinstance(count, dict) else {}

    # ------------------------------------------------------------ one value
    def _schema(self, places: Sequence[Place]) -> Any:
        """What a value must be that obeys all of `places`: a schema of the compiler's."""
        self._written += 1
        if self._written > MAX_SCHEMAS:
            raise TooManySchemas(f"the JSON schema stands for more than {MAX_SCHEMAS} schemas")
        flat = self._expand(places)
        if flat is None:
            return False
        key = frozenset(id(place.schema) for place in flat)
        if key in self._within:
            return False  # an alternative that is the whole again adds nothing
        self._within.add(key)
        try:
            return self._with_alternatives(flat)
        finally:
            self._within.remove(key)

    def _value(self, places: Iterable[Place]) -> Any:
        """The same, as a definition of its own unless it is small."""
        telling = [place for place in map(self._target, places) if not _says_nothing(place.schema)]
        if not telling or any(place.schema is False for place in telling):
            return not telling
        schema = telling[0].schema
        if len(telling) == 1 and _is_small(schema):
            if id(schema) not in self._small:
                self._small[id(schema)] = (schema, self._schema(telling))
            return self._small[id(schema)][1]
        key = tuple(sorted({(id(place.schema), place.declares) for place in telling}))
        if key not in self._names:
            name = str(len(self._names))
            self._names[key] = (name, telling)
            self._waiting.append((name, telling))
        return {"$ref": f"#/$defs/{self._names[key][0]}"}

    def _target(self, place: Place) -> Place:
        """What a place that is only a reference leads to: the same for all such places."""
        for _ in range(_LONGEST_CHAIN):
            schema = place.schema
            if not isinstance(schema, dict) or not {"$ref"} <= schema.keys() & ASSERTIONS <= {"$ref", "type"}:
                return place
            target = self._references.resolve("$ref", schema["$ref"], place.base)
            if "type" in schema and not _narrower(target.schema, schema):
                return place
            place = target._replace(declares=place.declares)
        raise SchemaError(_ITSELF)

    def _step(self, count: int) -> None:
        self._steps += count
        if self._steps > _STEPS:
            raise TooManySchemas('it combines too many schemas by "$ref", "allOf", "anyOf" and "oneOf"')

    def _expand(self, places: Iterable[Place]) -> list[Place] | None:
        """The places without references and `allOf`; None where nothing can obey them."""
        found: dict[int, Place] = {}

        def add(place: Place, chain: tuple[int, ...]) -> bool:
            schema = place.schema
            self._step(1)
            if isinstance(schema, bool):
                return schema
            if not isinstance(schema, dict):
                raise SchemaError(self._references.no_schema(schema))
            if id(schema) not in self._listing:
                self._listing[id(schema)] = (schema, with_values(schema))
            schema = self._listing[id(schema)][1]
            place = place._replace(schema=schema)
            if id(schema) in chain:
                raise SchemaError(_ITSELF)
            if id(schema) in found and (found[id(schema)].declares or not place.declares):
                return True
            chain = (*chain, id(schema))
            # In the order of the keywords: it is that of the properties.
            for key in schema:
                if key in REFERENCES:
                    target = self._references.resolve(key, schema[key], place.base)
                    if not add(target._replace(declares=place.declares), chain):
                        return False
                elif key == "allOf":
                    if not all(add(place_of(part, place), chain) for part in _list(schema, key)):
                        return False
                elif key == "properties":
                    found[id(schema)] = place
            found.setdefault(id(schema), place)
            return True

        return list(found.values()) if all(add(place, ()) for place in places) else None

    # ------------------------------------------------------------ alternatives
    def _with_alternatives(self, flat: list[Place]) -> Any:
        base = [self._without_choices(place) for place in flat]
        groups = self._groups(flat, base)
        if groups is None:
            return False
        ways: Group = [[]]
        rest: list[Group] = []
        for must, group in sorted(groups, key=lambda entry: len(entry[1])):
            more = self._combined(base, ways, group)
            if more is not None:
                ways = more
            elif must:
                rest.append(group)
        self._step(_size(base))
        merged = merge(base, self._draft, narrow=self._narrow)
        if merged.impossible:
            return False
        left = [any_of(self._value(branch) for branch in group) for group in rest]
        if ways == [[]]:
            self._properties += len(merged.properties)
            if self._properties > MAX_WRITTEN:
                raise TooManySchemas(f"the JSON schema stands for more than {MAX_WRITTEN} properties")
            return write(merged, self._value, left)
        self._branches += len(ways)
        if len(groups) == 1 and merged.empty:
            alternatives = any_of(self._value(way) for way in ways)
        else:
            if rest:
                # The compiler puts these together: an object must not be closed before.
                base = [place._replace(declares=False) for place in base]
            alternatives = any_of(self._schema([*base, *way]) for way in ways)
        return {"allOf": [alternatives, *left]} if left else alternatives

    def _combined(self, base: list[Place], ways: Group, group: Group) -> Group | None:
        """Each way with each alternative, but for those that rule each other out; None where they are too many."""
        found: Group = []
        product = len(ways) * len(group)
        cost = product * _size(base)
        tried = len(ways) > 1 and self._tried + cost <= _TRIED
        if not tried and product > MAX_BRANCHES:
            return None
        self._tried += cost if tried else 0
        for way, branch in itertools.product(ways, group):
            if tried:
                flat = self._expand([*base, *way, *branch])
                if flat is None or not possible(flat, self._expand):
                    continue
            found.append([*way, *branch])
            if len(found) > MAX_BRANCHES or self._branches + len(found) > _ALL_BRANCHES:
                return None
        return found

    def _without_choices(self, place: Place) -> Place:
        schema = place.schema
        if id(schema) not in self._plain:
            kept = {key: value for key, value in schema.items() if key not in _CHOICES and key not in REFERENCES}
            kept.pop("allOf", None)
            self._plain[id(schema)] = (schema, schema if len(kept) == len(schema) else kept)
        return place._replace(schema=self._plain[id(schema)][1])

    def _groups(self, flat: list[Place], base: list[Place]) -> list[tuple[bool, Group]] | None:
        """The alternatives of each keyword, and whether it has to be followed: others are left out where they are too
        many. None where nothing can obey them."""
        groups: list[tuple[bool, Group]] = []
        for place in flat:
            schema = place.schema
            if "anyOf" in schema:
                groups.append((True, [[place_of(inner, place)] for inner in _list(schema, "anyOf")]))
            if "oneOf" in schema:
                groups.append((True, self._one_of([place_of(inner, place) for inner in _list(schema, "oneOf")], base)))
            if self._brief:
                continue
            if "not" in schema:
                opposite = self._opposites.of(place_of(schema["not"], place))
                if opposite is not None:
                    groups.append((False, [[one] for one in opposite]))
            if "if" in schema and ("then" in schema or "else" in schema):
                condition = place_of(schema["if"], place)._replace(declares=False)
                opposite = self._opposites.of(condition)
                then, other = (place_of(schema.get(key, True), place) for key in ("then", "else"))
                if opposite is not None:
                    groups.append((False, [[condition, then], *([one, other] for one in opposite)]))
            for name, needed in _dependencies(schema):
                without = place._replace(schema={"properties": {name: False}}, declares=False)
                has = place._replace(schema={"required": [name]}, declares=False)
                groups.append((False, [[without], [has, place_of(needed, place)]]))
        return None if any(not group for _, group in groups) else groups

    def _one_of(self, options: list[Place], base: list[Place]) -> Group:
        """Each option without what would make another one hold as well, where that can be said."""
        everything = [[option] for option in options]
        if self._brief or not 1 < len(options) <= _COMPARED:
            return everything
        expanded = [self._expand([option]) for option in options]
        group: Group = []
        for index, option in enumerate(options):
            if expanded[index] is None:
                continue
            ours = self._expand([*base, option])
            if ours is None:
                continue
            mine = facts(ours, lowered=True)
            ways: Group = [[option]]
            for other, flat in enumerate(expanded):
                theirs = None if other == index or flat is None else facts(flat)
                if theirs is None or apart(mine, theirs, self._expand):
                    continue
                opposite = self._opposites.of(options[other])
                if opposite is None:
                    opposite = _beyond(mine, theirs, options[other])
                if opposite is not None and len(ways) * len(opposite) <= _EXCLUSIONS:
                    ways = [[*way, one] for way in ways for one in opposite]
            group += ways
        return group


def _beyond(mine: Facts, theirs: Facts, other: Place) -> list[Place] | None:
    """Alternatives that `other`, closed as well, does not allow: each requires a property that is not listed there."""
    if not (mine.closed and theirs.closed):
        return None
    names = [name for name in mine.properties if name not in theirs.properties]
    return [other._replace(schema=_having(name), declares=False) for name in names] or None


@lru_cache(1000)
def _having(name: str) -> dict[str, Any]:
    """The same object each time, so that schemas made with it are found to be equal."""
    return {"type": "object", "required": [name]}


def _size(places: Sequence[Place]) -> int:
    """Schemas and the properties that they list."""
    listed = [place.schema.get("properties") for place in places]
    return len(places) + sum(len(properties) for properties in listed if isinstance(properties, dict))


def _narrower(schema: Any, other: dict[str, Any]) -> bool:
    """The types of `schema` are all among those of `other`."""
    return isinstance(schema, dict) and "type" in schema and types_of(schema["type"]) <= types_of(other["type"])


def _is_small(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return True
    values = schema.get("enum")
    return not _WITH_SCHEMAS & schema.keys() and not (isinstance(values, list) and len(values) > _FEW_VALUES)


def _says_nothing(schema: Any) -> bool:
    return schema is True or (isinstance(schema, dict) and not ASSERTIONS & schema.keys())


def _list(schema: dict[str, Any], key: str) -> list[Any]:
    value = schema[key]
    if not isinstance(value, list):
        raise SchemaError(f'"{key}" must be a list')
    return value


def _dependencies(schema: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    """Property → the schema that the object must obey if it has that property."""
    for key in ("dependencies", "dependentRequired", "dependentSchemas"):
        value = schema.get(key)
        for name, needed in value.items() if isinstance(value, dict) else ():
            if isinstance(needed, str):
                needed = [needed]
            if isinstance(needed, list):
                needed = {"required": needed}
            if isinstance(needed, dict | bool):
                yield name, needed
