"""The JSON schema of JSON schemas: what a `$ref` to one of json-schema.org's drafts leads to.

One for all drafts from 4 on, in few words: what it allows is a schema in each of them. Drafts differ in what they allow
besides (booleans as schemas from draft 6 on).
"""

from __future__ import annotations

import re
from typing import Any

_URI = re.compile(r"https?://json-schema\.org/(?:draft-0(?P<number>[467])/|draft/(?:2019-09|2020-12)/)?schema")
_SELF: dict[str, Any] = {"$ref": "#"}
_SELVES: dict[str, Any] = {"type": "object", "additionalProperties": _SELF}
_LIST: dict[str, Any] = {"type": "array", "minItems": 1, "items": _SELF}
_COUNT: dict[str, Any] = {"type": "integer", "minimum": 0}
_NAMES: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"type": "string"}, "uniqueItems": True}
_TYPES: dict[str, Any] = {"enum": ["array", "boolean", "integer", "null", "number", "object", "string"]}
_TEXT: dict[str, Any] = {"type": "string"}
_NUMBER: dict[str, Any] = {"type": "number"}

_DEFINITIONS: dict[str, Any] = {
    "schemaArray": _LIST,
    "positiveInteger": _COUNT,
    "positiveIntegerDefault0": _COUNT,
    "nonNegativeInteger": _COUNT,
    "nonNegativeIntegerDefault0": _COUNT,
    "simpleTypes": _TYPES,
    "stringArray": _NAMES,
}
_PROPERTIES: dict[str, Any] = {
    "title": _TEXT,
    "description": _TEXT,
    "default": True,
    "type": {"anyOf": [_TYPES, {"type": "array", "minItems": 1, "items": _TYPES, "uniqueItems": True}]},
    "enum": {"type": "array", "minItems": 1, "uniqueItems": True},
    "properties": _SELVES,
    "required": _NAMES,
    "additionalProperties": {"anyOf": [{"type": "boolean"}, _SELF]},
    "patternProperties": _SELVES,
    "items": {"anyOf": [_SELF, _LIST]},
    "minItems": _COUNT,
    "maxItems": _COUNT,
    "uniqueItems": {"type": "boolean"},
    "minProperties": _COUNT,
    "maxProperties": _COUNT,
    "minLength": _COUNT,
    "maxLength": _COUNT,
    "pattern": {"type": "string", "format": "regex"},
    "format": _TEXT,
    "minimum": _NUMBER,
    "maximum": _NUMBER,
    "multipleOf": {"type": "number", "exclusiveMinimum": 0},
    "allOf": _LIST,
    "anyOf": _LIST,
    "oneOf": _LIST,
    "not": _SELF,
    "definitions": _SELVES,
    "$ref": {"type": "string", "format": "uri-reference"},
}


def metaschema(uri: str) -> dict[str, Any] | None:
    """The schema that `uri`, without fragment, names; None where it names no draft's."""
    found = _URI.fullmatch(uri)
    if found is None:
        return None
    types = ["object"] if found["number"] == "4" else ["object", "boolean"]
    return {"type": types, "properties": _PROPERTIES, "definitions": _DEFINITIONS}
