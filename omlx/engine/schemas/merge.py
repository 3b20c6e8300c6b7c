"""Several JSON schemas that hold for one value, *merged* into one: what `allOf` means, keyword by keyword.

References, `allOf` and alternatives are not looked at here: see `lower`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

from omlx.engine.schemas.facts import EXCEPT, TYPES, spelled, type_of, types_of
from omlx.engine.schemas.lookahead import any_text_but, lengths
from omlx.engine.schemas.merged import Merged
from omlx.engine.schemas.objects import leave_out_patterns, merge_objects
from omlx.engine.schemas.patterns import ASCII_FORMATS, FORMAT_PATTERNS, trouble, usable
from omlx.engine.schemas.refs import Place, SchemaError, place_of

_LARGEST = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_SMALLEST = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_COUNTS = frozenset({"minLength", "minItems", "minProperties", "maxLength", "maxItems", "maxProperties"})
_MOST = 4 * 10**18
MAX_MULTIPLE = 10_000
"""`multipleOf` becomes an automaton with so many states; several at once one with their product."""
_EACH = 500
"""Values that are looked at one by one."""
_OLD_DRAFTS = ("draft-03", "draft-04", "draft-06", "draft-07", "2019-09")


def merge(flat: Sequence[Place], draft: str, *, narrow: bool = False) -> Merged:
    """Raises SchemaError where a keyword has a value that it cannot have. `draft`: the root's `$schema`."""
    merged = Merged()
    for place in flat:
        _types_and_values(merged, place.schema)
        _limits(merged, place.schema)
        _arrays(merged, place, old=any(name in draft for name in _OLD_DRAFTS))
    if merged.items is None and not any("contains" in place.schema for place in flat):
        rest = [place for place in flat if "unevaluatedItems" in place.schema]
        merged.items = [place_of(place.schema["unevaluatedItems"], place) for place in rest] or None
    merge_objects(merged, flat)
    if narrow:
        leave_out_patterns(merged)
    _exceptions(merged)
    if merged.types == set(TYPES) and merged.values is None and merged.objects != merged.arrays:
        # Nobody lists properties of a value that is to be a number.
        merged.types = {"object"} if merged.objects else {"array"}
    _texts(merged)
    _numbers(merged)
    if merged.values is not None:
        merged.types &= {type_of(value) for value in merged.values}
    merged.impossible = not merged.types or merged.values == []
    return merged


def _texts(merged: Merged) -> None:
    """Leave out formats, then patterns, that the compiler cannot join with the rest; texts, where none obeys all."""
    keys = ("minLength", "maxLength", "pattern", "format")
    limits: dict[str, Any] = {key: merged.limits[key] for key in keys if key in merged.limits}
    also = [part for part in merged.also if "pattern" in part or "format" in part]
    if "string" not in merged.types or not (limits or also):
        return
    if merged.values is not None:
        if len(merged.values) > _EACH:
            return  # the compiler leaves out those that do not obey
        merged.values = [
            value
            for value in merged.values
            if not isinstance(value, str) or not trouble({"type": "string", "enum": [value], **limits, "allOf": also})
        ]
        return
    patterns = [part for part in also if "format" not in part]
    plain = {key: value for key, value in limits.items() if key != "format"}
    lengths = {key: value for key, value in plain.items() if key != "pattern"}
    for formats, kept, parts in (
        (True, limits, also),
        (False, plain, patterns),
        (False, plain, []),
        (False, lengths, []),
    ):
        why = trouble({"type": "string", **kept, "allOf": parts})
        if not why:
            merged.limits = {key: value for key, value in merged.limits.items() if key in kept or key not in limits}
            merged.also = [part for part in merged.also if part in parts or part not in also]
            return
        if why == "empty" and not formats:
            break
    merged.types.discard("string")


def _numbers(merged: Merged) -> None:
    keys = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf")
    limits = {key: merged.limits[key] for key in keys if key in merged.limits}
    multiples = [limits.get("multipleOf"), *(part.get("multipleOf") for part in merged.also)]
    if math.lcm(*(_digits(multiple) for multiple in multiples if multiple is not None)) > MAX_MULTIPLE:
        raise SchemaError(f'"multipleOf" may be {MAX_MULTIPLE} at most')
    for kind in ("integer", "number"):
        if limits and kind in merged.types and trouble({"type": kind, **limits}) == "empty":
            merged.types.discard(kind)


def _types_and_values(merged: Merged, schema: dict[str, Any]) -> None:
    if "type" in schema:
        names = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
        if not isinstance(names, list) or not names:
            raise SchemaError('"type" must be a name or a list of names')
        for name in names:
            if name not in TYPES:
                raise SchemaError(f'"type" must be one of {", ".join(TYPES)}, not {str(name)[:40]}')
        merged.types &= types_of(names)
    for key in ("const", "enum"):
        if key not in schema:
            continue
        listed = [schema["const"]] if key == "const" else schema["enum"]
        if not isinstance(listed, list):
            raise SchemaError('"enum" must be a list')
        if merged.values is None:
            merged.values = listed
        else:
            spellings = {spelled(value) for value in listed}
            merged.values = [value for value in merged.values if spelled(value) in spellings]
    if isinstance(schema.get(EXCEPT), list):
        merged.excepted += schema[EXCEPT]


def _limits(merged: Merged, schema: dict[str, Any]) -> None:
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and pattern.startswith("^(?="):
        pattern, counted = lengths(pattern)
        _limits(merged, {**counted, "type": "string"})
        schema = {**schema, "pattern": pattern}
    for key in (*_LARGEST, *_SMALLEST):
        value = schema.get(key)
        if value is None or value is False:
            continue
        if value is True and key.startswith("exclusive"):
            # Draft 4: the limit itself is excluded.
            value = schema.get("minimum" if key == "exclusiveMinimum" else "maximum")
            if value is None:
                continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise SchemaError(f'"{key}" must be a number')
        if key not in _COUNTS:
            value = _reachable(key, value)
        else:
            if value < 0 or value != int(value):
                raise SchemaError(f'"{key}" must be a whole number of at least 0')
            value = int(value)
        known = merged.limits.get(key, value)
        merged.limits[key] = max(known, value) if key in _LARGEST else min(known, value)
    for key, value in _several(schema):
        if key not in merged.limits:
            merged.limits[key] = value
        elif merged.limits[key] != value and {key: value} not in merged.also:
            merged.also.append({key: value})


def _several(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The keywords that can be given several times: what is more than one goes into `also`."""
    multiple, form = schema.get("multipleOf"), schema.get("format")
    for pattern in usable(schema.get("pattern")) or ():
        yield "pattern", pattern
    if multiple is not None:
        if isinstance(multiple, bool) or not isinstance(multiple, int | float) or not 0 < multiple < math.inf:
            raise SchemaError('"multipleOf" must be a number above 0')
        yield "multipleOf", multiple
    if isinstance(form, str):
        form = ASCII_FORMATS.get(form, form)
        yield ("pattern", FORMAT_PATTERNS[form]) if form in FORMAT_PATTERNS else ("format", form)


def _reachable(key: str, value: float) -> float:
    """A limit of numbers within what the compiler can count to: a wider one is sampled in."""
    if not (-_MOST if key in _SMALLEST else -math.inf) <= value <= (_MOST if key in _LARGEST else math.inf):
        raise SchemaError(f'"{key}" must be between -{_MOST:.0g} and {_MOST:.0g}')
    return max(-_MOST, min(value, _MOST))


def _exceptions(merged: Merged) -> None:
    """Take away what `not` takes away, as far as a schema can say it."""
    excepted = {spelled(value) for value in merged.excepted}
    if merged.values is not None:
        merged.values = [
            value for value in merged.values
            if spelled(value) not in excepted and type_of(value) in merged.types
        ]  # fmt: skip
        merged.types &= {type_of(value) for value in merged.values}
        return
    if not excepted:
        return
    if "null" in excepted:
        merged.types.discard("null")
    if {"true", "false"} <= excepted:
        merged.types.discard("boolean")
    elif "boolean" in merged.types and {"true", "false"} & excepted:
        others = [name for name in TYPES if name in merged.types and name != "boolean"]
        left = {"enum": ["true" not in excepted]}
        merged.also.append({"anyOf": [left, {"type": others}]} if others else left)
    texts = [value for value in merged.excepted if isinstance(value, str)]
    if texts and "string" in merged.types:
        pattern = any_text_but(texts)
        if pattern:
            merged.also.append({"pattern": pattern})
    for value in merged.excepted[:_EACH]:
        if isinstance(value, int | float) and not isinstance(value, bool) and "integer" in merged.types:
            others = [name for name in TYPES if name in merged.types and name not in {"integer", "number"}]
            kind = "number" if "number" in merged.types else "integer"
            sides = [{"type": kind, "exclusiveMinimum": value}, {"type": kind, "exclusiveMaximum": value}]
            merged.also.append({"anyOf": [*sides, *([{"type": others}] if others else [])]})


# ---------------------------------------------------------------- arrays
def _arrays(merged: Merged, place: Place, *, old: bool) -> None:
    schema = place.schema
    items, prefix = schema.get("items"), schema.get("prefixItems")
    if isinstance(items, list):
        prefix, items = items, schema.get("additionalItems")
    elif old:
        prefix = None
    for key, value in (("prefixItems", prefix), ("items", items)):
        if value is not None and not isinstance(value, list if key == "prefixItems" else dict | bool):
            raise SchemaError(f'"{key}" must be {"a list of schemas" if key == "prefixItems" else "a schema"}')
    first = [[place_of(inner, place)] for inner in prefix or []]
    rest = None if items is None else [place_of(items, place)]
    if not first and rest is None:
        return
    pairs = itertools.zip_longest(merged.prefix, first)
    merged.prefix = [
        [*((merged.items or []) if one is None else one), *((rest or []) if other is None else other)]
        for one, other in pairs
    ]
    if rest is not None:
        merged.items = [*(merged.items or []), *rest]


def _digits(multiple: float) -> int:
    """`multipleOf` as the whole number that its digits make."""
    _, digits, exponent = Decimal(str(multiple)).normalize().as_tuple()
    size = len(digits) + max(int(exponent), 0)
    return int("".join(map(str, digits)).ljust(size, "0")) if size < 20 else MAX_MULTIPLE + 1
