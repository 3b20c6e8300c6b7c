"""JSON schemas from outside, made fit for the grammar compiler: bounded, then lowered to what it follows.

The compiler has limits of its own, but some schemas of a few bytes cost it minutes or gigabytes before it looks at
them. What is refused here is far beyond what anybody writes by hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from omlx.engine.schemas.lower import TooManySchemas, lower
from omlx.engine.schemas.objects import MAX_PROPERTIES, TOO_MANY_PROPERTIES
from omlx.engine.schemas.patterns import too_large
from omlx.engine.schemas.refs import SchemaError

MAX_DEPTH = 100
"""Levels of nesting, lists and objects counted alike; the compiler itself stops at 127."""
MAX_VALUES = 50_000
MAX_ALL_PROPERTIES = 5000
"""In all objects together."""
_LARGE = 20_000
"""Characters of a lowered schema from which on it may be too large for the compiler."""


def prepare(schema: dict[str, Any] | str, *, narrow: bool = False) -> dict[str, Any]:
    """The schema to compile. Raises SchemaError. `narrow`: see `lower`."""
    if isinstance(schema, str):
        schema = _read(schema)
    _bound(schema)
    try:
        lowered = lower(schema, narrow=narrow)
    except TooManySchemas:
        return lower(schema, narrow=narrow, brief=True)
    written = json.dumps(lowered)
    return lower(schema, narrow=narrow, brief=True) if len(written) > _LARGE and too_large(written) else lowered


def _read(text: str) -> dict[str, Any]:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        raise SchemaError("it is no JSON schema") from None
    if not isinstance(schema, dict):
        raise SchemaError("a JSON schema is an object")
    return schema


def _bound(schema: dict[str, Any]) -> None:
    values = properties = 0
    widest = 0
    level: list[Any] = [schema]
    for _ in range(MAX_DEPTH):
        values += len(level)
        if values > MAX_VALUES:
            raise SchemaError(f"the JSON schema holds more than {MAX_VALUES} values")
        for item in level:
            if isinstance(item, dict):
                listed = len(item["properties"]) if isinstance(item.get("properties"), dict) else 0
                properties, widest = properties + listed, max(widest, listed)
        level = list(_inner(level))
        if not level:
            break
    else:
        raise SchemaError(f"the JSON schema is nested more than {MAX_DEPTH} levels deep")
    if widest > MAX_PROPERTIES:
        raise SchemaError(TOO_MANY_PROPERTIES)
    if properties > MAX_ALL_PROPERTIES:
        raise SchemaError(f"the JSON schema lists more than {MAX_ALL_PROPERTIES} properties")


def _inner(level: list[Any]) -> Iterator[Any]:
    for item in level:
        if isinstance(item, dict):
            yield from item.values()
        elif isinstance(item, list):
            yield from item
