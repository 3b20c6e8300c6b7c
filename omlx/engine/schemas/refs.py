"""References within one JSON schema: `$ref`, `$dynamicRef` and `$recursiveRef` by pointer, anchor or `$id`.

A *place* is a schema together with the URI that the references in it are relative to. Nothing is ever fetched: where a
reference leads to another document, any value will do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import unquote, urljoin

from omlx.engine.schemas.metaschema import metaschema

DATA = frozenset({"enum", "const", "default", "examples", "example"})
"""Keywords whose values are data, not schemas."""
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_SHOWN = 100
"""Characters of a reference that an error quotes."""


class SchemaError(ValueError):
    """The schema cannot be used; the message says why."""


class Place(NamedTuple):
    schema: Any
    base: str
    declares: bool = True
    """False: a condition. Its `properties` are looked at, but an object is not closed because of them."""
    name: str = "$id"
    """The keyword that names a schema: `id` in drafts 3 and 4."""


class References:
    """Finds what the references of `root` lead to."""

    def __init__(self, root: dict[str, Any]) -> None:
        draft = root.get("$schema")
        if isinstance(draft, str):
            old = "draft-03" in draft or "draft-04" in draft
        else:
            old = "id" in root and "$id" not in root
        name = "id" if old else "$id"
        self.root = Place(root, _own_uri(root, "", name), name=name)
        self._known: dict[str, Place] = {}
        for place in _schemas(root, name):
            schema = place.schema
            self._known.setdefault(place.base.partition("#")[0], place)
            for key in ("$anchor", "$dynamicAnchor"):
                if isinstance(schema.get(key), str):
                    self._known.setdefault(f"{place.base.partition('#')[0]}#{schema[key]}", place)
            for own in (schema.get("$id"), schema.get("id")):
                if isinstance(own, str) and own.startswith("#") and len(own) > 1:
                    self._known.setdefault(place.base.partition("#")[0] + own, place)
                elif isinstance(own, str) and own:
                    self._known.setdefault(own.partition("#")[0], place)
        self._known[""] = self.root
        self._known[self.root.base.partition("#")[0]] = self.root

    def no_schema(self, value: Any) -> str:
        """What to say of a value that stands where a schema must be: the keys that lead there, and the value."""
        path = _path_to(self.root.schema, value)
        where = "/".join(path[-4:]) or "a keyword"
        return f'"{where}" must be a schema, not {json.dumps(value, ensure_ascii=False, default=str)[:_SHOWN]}'

    def resolve(self, keyword: str, reference: Any, base: str) -> Place:
        """What `reference` leads to from a place with this base. Raises SchemaError."""
        if not isinstance(reference, str):
            raise SchemaError(f'"{keyword}" must be a text')
        shown = reference[:_SHOWN]
        try:
            uri = base.partition("#")[0] + reference if reference[:1] in {"#", ""} else urljoin(base, reference)
        except ValueError:
            raise SchemaError(f'"{keyword}" is no reference: {shown}') from None
        resource, _, fragment = uri.partition("#")
        if resource not in self._known:
            # Definitions were also named without a pointer.
            named = (_follow(self.root, pointer) for pointer in _pointers(reference))
            elsewhere = Place(metaschema(resource) or True, resource)
            self._known[resource] = next(filter(None, named), elsewhere)
        place = self._known[resource]
        if place.schema is True:
            return place
        if keyword != "$ref" and (outermost := self._outermost(keyword, place, unquote(fragment))):
            return outermost
        ours = place.base == resource and metaschema(resource) is not None
        if fragment and not fragment.startswith("/"):
            found = self._known.get(f"{resource}#{unquote(fragment)}")
            # Pointers were also written in short.
            found = found or next(filter(None, (_follow(place, pointer) for pointer in _pointers(fragment))), None)
        else:
            # Many count from the root in spite of a name in between.
            ways = [(start, way) for start in (place, self.root) for way in (unquote(fragment), fragment)]
            found = next(filter(None, (_follow(*way) for way in ways)), None)
            if fragment == "/":
                # Meant is the whole, not its property of the name "".
                found = found or place
        if found is None and ours:
            return place._replace(schema=True)
        if found is None:
            raise SchemaError(f'"{keyword}" leads to {shown}, which is not in the schema')
        return found

    def _outermost(self, keyword: str, place: Place, name: str) -> Place | None:
        """What a dynamic reference leads to where both what it names and the whole schema can be extended."""
        if keyword == "$recursiveRef":
            both = [one for one in (place.schema, self.root.schema) if isinstance(one, dict)]
            return self.root if len(both) == 2 and all(one.get("$recursiveAnchor") is True for one in both) else None
        places = [self._known.get(f"{start.base.partition('#')[0]}#{name}") for start in (place, self.root)]
        if not all(found and found.schema.get("$dynamicAnchor") == name for found in places):
            return None
        return places[1]


def _pointers(name: str) -> tuple[str, ...]:
    return (f"/{name}", f"/definitions/{name}", f"/$defs/{name}")


def _schemas(root: Any, name: str) -> Iterator[Place]:
    waiting = [Place(root, "", name=name)]
    while waiting:
        value, base, *_ = waiting.pop()
        if isinstance(value, dict):
            base = _own_uri(value, base, name)
            yield Place(value, base, name=name)
            waiting += [Place(inner, base) for key, inner in reversed(value.items()) if key not in DATA]
        elif isinstance(value, list):
            waiting += [Place(inner, base) for inner in reversed(value)]


def _own_uri(schema: dict[str, Any], base: str, name: str) -> str:
    own = schema.get(name)
    if not isinstance(own, str) or not own or own.startswith("#") or (name == "id" and "$ref" in schema):
        return base
    try:
        return urljoin(base, own)
    except ValueError:
        return base


def place_of(schema: Any, outer: Place) -> Place:
    """A schema that stands within `outer`."""
    base = _own_uri(schema, outer.base, outer.name) if isinstance(schema, dict) else outer.base
    return outer._replace(schema=schema, base=base)


def _follow(place: Place, pointer: str) -> Place | None:
    value, base = place.schema, place.base
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and re.fullmatch("[0-9]{1,6}", name) and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
        if isinstance(value, dict):
            base = _own_uri(value, base, place.name)
    return Place(value, base, name=place.name) if isinstance(value, dict | bool) else None


def _path_to(root: Any, wanted: Any) -> list[str]:
    """The keys that lead to this very object, outside of data; [] where it is not found."""
    waiting: list[tuple[list[str], Any]] = [([], root)]
    while waiting:
        path, value = waiting.pop()
        if value is wanted and path:
            return path
        if isinstance(value, dict):
            waiting += [([*path, key], inner) for key, inner in value.items() if key not in DATA]
        elif isinstance(value, list):
            waiting += [([*path, str(at)], inner) for at, inner in enumerate(value)]
    return []
