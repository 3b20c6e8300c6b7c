"""References within one JSON schema: `$ref`, `$dynamicRef` and `$recursiveRef` by pointer, anchor or `$id`.

A *place* is a schema together with the URI that the references in it are relative to. Nothing is ever fetched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import unquote, urljoin

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


class References:
    """Finds what the references of `root` lead to."""

    def __init__(self, root: dict[str, Any]) -> None:
        self.root = Place(root, _own_uri(root, ""))
        self._known: dict[str, Place] = {}
        for place in _schemas(root):
            schema = place.schema
            self._known.setdefault(place.base.partition("#")[0], place)
            for key in ("$anchor", "$dynamicAnchor"):
                if isinstance(schema.get(key), str):
                    self._known.setdefault(f"{place.base.partition('#')[0]}#{schema[key]}", place)
            own = _own(schema)
            if own.startswith("#") and len(own) > 1:
                self._known.setdefault(place.base.partition("#")[0] + own, place)
        self._known[""] = self.root
        self._known[self.root.base.partition("#")[0]] = self.root

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
        place = self._known.get(resource)
        if place is None:
            raise SchemaError(f'"{keyword}" leads outside of the schema, to {shown}: put what it means into "$defs"')
        if fragment and not fragment.startswith("/"):
            anchored = self._known.get(f"{resource}#{unquote(fragment)}")
            # `#name` was also used as a short form of a definition's pointer.
            found = anchored or _follow(place, f"/definitions/{fragment}") or _follow(place, f"/$defs/{fragment}")
        else:
            found = _follow(place, unquote(fragment)) or _follow(place, fragment)
        if found is None:
            raise SchemaError(f'"{keyword}" leads to {shown}, which is not in the schema')
        return found


def _schemas(root: Any) -> Iterator[Place]:
    waiting = [Place(root, "")]
    while waiting:
        value, base, _ = waiting.pop()
        if isinstance(value, dict):
            base = _own_uri(value, base)
            yield Place(value, base)
            waiting += [Place(inner, base) for key, inner in reversed(value.items()) if key not in DATA]
        elif isinstance(value, list):
            waiting += [Place(inner, base) for inner in reversed(value)]


def _own(schema: dict[str, Any]) -> str:
    own = schema.get("$id", schema.get("id"))
    return own if isinstance(own, str) else ""


def _own_uri(schema: dict[str, Any], base: str) -> str:
    own = _own(schema)
    if not own or own.startswith("#"):
        return base
    try:
        return urljoin(base, own)
    except ValueError:
        return base


def place_of(schema: Any, outer: Place) -> Place:
    """A schema that stands within `outer`."""
    base = _own_uri(schema, outer.base) if isinstance(schema, dict) else outer.base
    return Place(schema, base, outer.declares)


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
            base = _own_uri(value, base)
    return Place(value, base) if isinstance(value, dict | bool) else None
