"""JSON schemas as they are published: references to other documents, by name, and schemas that stand for very many."""

from __future__ import annotations

import random

import jsonschema
import pytest

from tests.engine.test_schemas import INTEGER, STRING, obj, takes, walk

DRAFTS = ("http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-07/schema#",
          "https://json-schema.org/draft/2020-12/schema")  # fmt: skip


@pytest.mark.parametrize("reference", ["https://example.com/a.json", "a.json#/definitions/x", "../a.json", "urn:x:y"])
def test_what_another_document_says_is_not_enforced(reference: str) -> None:
    schema = obj({"a": {"$ref": reference}, "n": INTEGER}, "n")
    assert takes(schema, {"a": ["any"], "n": 1})
    assert not takes(schema, {"a": ["any"], "n": ""})
    assert not takes(schema, {"a": 1})


def test_a_document_whose_own_address_is_another_still_knows_its_parts() -> None:
    schema = {"$id": "https://example.com/a.json", "$defs": {"n": INTEGER}, **obj({"a": {"$ref": "a.json#/$defs/n"}})}
    assert takes(schema, {"a": 1})
    assert not takes(schema, {"a": ""})


@pytest.mark.parametrize("draft", DRAFTS)
def test_a_reference_to_a_draft_of_json_schema_wants_a_schema(draft: str) -> None:
    schema = obj({"schema": {"$ref": draft}}, "schema")
    assert takes(schema, {"schema": {"type": "object", "properties": {"a": {"type": "string", "minLength": 2}}}})
    assert not takes(schema, {"schema": {"type": "text"}})
    assert not takes(schema, {"schema": 1})
    validator = jsonschema.validators.validator_for({"$schema": draft})
    for seed in range(10):
        written = walk(schema, random.Random(seed))["schema"]
        errors = list(validator(validator.META_SCHEMA).iter_errors(written))
        assert {error.validator for error in errors} <= {"uniqueItems"}, written


def test_a_part_of_a_draft_can_be_referred_to() -> None:
    base = "http://json-schema.org/draft-04/schema#"
    schema = obj({"title": {"$ref": f"{base}/properties/title"}, "sizes": {"$ref": f"{base}/definitions/stringArray"}})
    assert takes(schema, {"title": "x", "sizes": ["a"]})
    assert not takes(schema, {"title": 1})
    assert not takes(schema, {"sizes": []})
    assert takes(obj({"a": {"$ref": f"{base}/properties/exclusiveMaximum"}}), {"a": True})


@pytest.mark.parametrize("reference", ["person", "definitions/person"])
def test_a_definition_may_be_named_without_a_pointer(reference: str) -> None:
    schema = obj({"a": {"$ref": reference}}, definitions={"person": obj({"name": STRING}, "name")})
    assert takes(schema, {"a": {"name": ""}})
    assert not takes(schema, {"a": {}})


def test_a_reference_beside_the_type_that_it_has_anyhow_adds_nothing() -> None:
    names = [f"k{at}" for at in range(150)]
    schema = obj({name: {"type": "object", "$ref": "#", "default": {}} for name in names} | {"n": INTEGER}, "n")
    assert takes(schema, {"k7": {"k149": {"n": 1}, "n": 2}, "n": 3})
    assert not takes(schema, {"k7": {"k149": {"n": ""}, "n": 2}, "n": 3})


def test_a_long_list_of_values_may_be_used_in_many_places() -> None:
    values = [f"rule {at}" for at in range(900)]
    places = obj({f"k{at}": {"type": "array", "items": {"$ref": "#/$defs/rule"}} for at in range(100)})
    schema = places | {"$defs": {"rule": {"type": "string", "enum": values}}}
    assert takes(schema, {"k3": ["rule 7"], "k99": ["rule 899"]})
    assert not takes(schema, {"k3": ["rule 900"]})


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
def test_alternatives_that_only_list_values_are_one_list(keyword: str) -> None:
    tasks = [f"task {at}" for at in range(254)]
    schema = {
        "allOf": [
            {keyword: [{"const": task, "title": task} for task in tasks]},
            {"anyOf": [{"enum": [task], "type": "string"} for task in tasks[5:]]},
        ]
    }
    assert takes(schema, "task 5")
    assert not takes(schema, "task 4")


def test_a_value_that_two_alternatives_of_one_of_list_is_none() -> None:
    schema = {"oneOf": [{"enum": [1, 2, "x"]}, {"enum": [2, 3]}, {"enum": [4, "y"], "type": "string"}]}
    assert [value for value in (1, 2, 3, 4, "x", "y") if takes(schema, value)] == [1, 3, "x", "y"]


def test_conditions_are_left_out_of_a_schema_that_becomes_too_large_with_them() -> None:
    names = [f"k{at}" for at in range(100)]
    excluded = {name: {"not": {"required": names[10 + at : 20 + at]}} for at, name in enumerate(names[:8])}
    schema = obj(
        {name: {"enum": ["true", "false"]} for name in names},
        anyOf=[{"required": [name]} for name in names[:6]],
        dependencies=excluded | {name: ["k0"] for name in names[50:60]},
    )
    files = obj(
        {"files": {"type": "array", "items": {"allOf": [schema, {"anyOf": [{"not": {"required": ["k9"]}}, {}]}]}}}
    )
    assert takes(files, {"files": [{"k0": "true"}, {"k5": "true"}]})
    assert not takes(files, {"files": [{"k90": "true"}]})
    assert not takes(files, {"files": [{"k0": 1}]})


def test_a_dynamic_reference_leads_to_the_outermost_anchor() -> None:
    strings = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://example.com/strings",
        "$ref": "list",
        "$defs": {
            "item": {"$dynamicAnchor": "item", "type": "string"},
            "list": {
                "$id": "list",
                "type": "array",
                "items": {"$dynamicRef": "#item"},
                "$defs": {"item": {"$dynamicAnchor": "item"}},
            },
        },
    }
    assert takes(strings, ["a", "b"])
    assert not takes(strings, ["a", 1])
    tree = {
        "$id": "https://example.com/strict",
        "$recursiveAnchor": True,
        "$ref": "tree",
        "required": ["n"],
        "$defs": {
            "tree": {"$id": "tree", "$recursiveAnchor": True, **obj({"n": INTEGER, "sub": {"$recursiveRef": "#"}})}
        },
    }
    assert takes(tree, {"n": 1, "sub": {"n": 2}})
    assert not takes(tree, {"n": 1, "sub": {}})


def test_schemas_of_the_oldest_drafts_are_named_by_id() -> None:
    schema = {"id": "http://example.com/tree", "definitions": {"node": {"id": "node", **obj({"n": INTEGER}, "n")}}}
    assert takes(schema | obj({"a": {"$ref": "node"}}), {"a": {"n": 1}})
    assert not takes(schema | obj({"a": {"$ref": "http://example.com/node"}}), {"a": {}})


def test_names_that_a_pattern_of_properties_leaves_out_obey_the_rest() -> None:
    schema = obj(patternProperties={"^(?!plugins$|x$)[a-z][a-z+-]*$": INTEGER}, additionalProperties=False)
    assert takes(schema, {"a": 1, "plug": 2})
    for wrong in ({"plugins": 1}, {"x": 1}, {"": 1}, {"a": ""}, {"A": 1}):
        assert not takes(schema, wrong), wrong
    listed = schema | {"properties": {"plugins": STRING}}
    assert takes(listed, {"plugins": "", "b": 3})
    assert not takes(listed, {"plugins": 1})


@pytest.mark.parametrize("pair", [r"\uD800\uDC00-\uDBFF\uDFFF", r"\uD800\uDBFF-\uDC00\uDFFF"])
def test_halves_of_characters_in_a_pattern_stand_for_none(pair: str) -> None:
    schema = {"type": "string", "pattern": rf"^[\u0020-\uD7FF\uE000-\uFFFD{pair}\t]*$"}
    assert takes(schema, "a é \t")
    assert not takes(schema, "a\n")


def test_one_of_two_closed_objects_has_a_property_that_the_other_lacks() -> None:
    weighted = obj({"weighted": {"type": "array", "uniqueItems": True}, "name": STRING}, additionalProperties=False)
    balanced = obj({"balanced": obj({"n": INTEGER}), "name": STRING}, additionalProperties=False)
    schema = {"oneOf": [weighted, balanced]}
    for right in ({"weighted": []}, {"balanced": {"n": 1}, "name": ""}):
        assert takes(schema, right), right
    for wrong in ({}, {"name": ""}, {"weighted": [], "balanced": {}}):
        assert not takes(schema, wrong), wrong
