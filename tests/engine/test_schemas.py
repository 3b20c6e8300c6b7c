"""JSON schemas of every draft: which values a reply may be. Walks at random through the grammar obey the schema by the
`jsonschema` package's judgement; values that obey it can be written, others cannot.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from omlx.engine.grammar import GrammarCompiler
from omlx.engine.grammar_text import GrammarError
from omlx.engine.schemas.facts import ASSERTIONS, EXCEPT
from omlx.messages.constraint import Grammar

END = "<|end|>"
STRING, INTEGER, BOOLEAN = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}


def byte_tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: at for at, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(END, special=True, normalized=False)])
    return tokenizer


TOKENIZER = byte_tokenizer()
SIZE = TOKENIZER.get_vocab_size()
STOP = TOKENIZER.token_to_id(END)
COMPILER = GrammarCompiler(TOKENIZER, SIZE, {STOP})
CLOSING = {TOKENIZER.token_to_id(text) for text in '"}]'}


def matcher(schema: dict[str, Any]) -> Any:
    return COMPILER.matcher(Grammar(kind="schema", source=schema))


def takes(schema: dict[str, Any], value: Any) -> bool:
    """Whether the grammar lets a reply be this value."""
    state = matcher(schema)
    tokens = TOKENIZER.encode(json.dumps(value, ensure_ascii=False)).ids
    return all(state.consume_token(token) for token in tokens) and bool(state.is_accepting())


def walk(schema: dict[str, Any], chance: random.Random) -> Any:
    """What comes of any allowed byte after the other, with a liking for what closes."""
    state, tokens, bits = matcher(schema), [], np.zeros(COMPILER.words, np.uint32)
    for _ in range(4000):
        state.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        allowed = [token for token in range(SIZE) if bits[token // 32] >> np.uint32(token % 32) & np.uint32(1)]
        assert allowed, f"nothing may follow {TOKENIZER.decode(tokens)}"
        if STOP in allowed:
            return json.loads(TOKENIZER.decode(tokens))
        closing = [token for token in allowed if token in CLOSING]
        token = chance.choice(closing if closing and chance.random() < 0.5 else allowed)
        state.consume_token(token)
        tokens.append(token)
    raise AssertionError("the walk does not end")


def obj(properties: dict[str, Any] | None = None, *required: str, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object"} if properties is None else {"type": "object", "properties": properties}
    return found | ({"required": list(required)} if required else {}) | more


BASE = {"$defs": {"base": obj({"x": INTEGER}, "x")}}
NODE = obj({"value": INTEGER, "next": {"$ref": "#/$defs/node"}}, "value")

SCHEMAS: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    # name: schema, values that can be written, values that cannot
    "an object is closed": (obj({"a": INTEGER}), [{}, {"a": 1}], [{"b": 1}, {"a": "x"}]),
    "unless it says that it is open": (obj({"a": INTEGER}, additionalProperties={}), [{"a": 1, "b": []}], [{"a": []}]),
    "others of one kind": (obj({"a": INTEGER}, additionalProperties=BOOLEAN), [{"a": 1, "b": True}], [{"b": 1}]),
    "no properties listed": (obj(), [{}, {"any": [1]}], [1]),
    "required but not listed": (obj({"a": INTEGER}, "a", "ghost"), [{"a": 1, "ghost": None}], [{"a": 1}]),
    "inheritance": (
        BASE | {"allOf": [{"$ref": "#/$defs/base"}, obj({"y": STRING}, "y")]},
        [{"x": 1, "y": ""}], [{"x": 1}, {"y": ""}, {"x": 1, "y": "", "z": 1}],
    ),
    "properties beside allOf": (
        BASE | obj({"y": STRING}, "y") | {"allOf": [{"$ref": "#/$defs/base"}]},
        [{"y": "", "x": 1}], [{"y": ""}],
    ),
    "keywords beside $ref": (
        BASE | {"$ref": "#/$defs/base", "properties": {"y": STRING}}, [{"x": 1}, {"x": 1, "y": ""}], [{"y": ""}, {}],
    ),
    "the same property twice": (
        {"allOf": [obj({"a": {"type": "integer", "minimum": 2}}, "a"), obj({"a": {"maximum": 4}})]},
        [{"a": 3}], [{"a": 1}, {"a": 5}, {}],
    ),
    "properties beside anyOf": (
        obj({"a": INTEGER}, anyOf=[obj({"b": BOOLEAN}, "b"), obj({"c": STRING}, "c")]),
        [{"a": 1, "b": True}, {"c": ""}], [{"a": 1}, {}, {"b": 1}],
    ),
    "a base that is recursive": (
        {"$defs": {"b": obj({"child": {"$ref": "#"}})}, "allOf": [{"$ref": "#/$defs/b"}, obj({"n": INTEGER}, "n")]},
        [{"n": 1}, {"child": {"n": 2}, "n": 1}], [{"child": {}, "n": 1}, {}],
    ),
    "a list": (
        {"$defs": {"node": NODE}, "$ref": "#/$defs/node"},
        [{"value": 1}, {"value": 1, "next": {"value": 2}}], [{"next": {"value": 1}}],
    ),
    "a part that can never end is never begun": (
        {"$defs": {"node": obj({"next": {"$ref": "#/$defs/node"}}, "next")}, **obj({"n": {"$ref": "#/$defs/node"}})},
        [{}], [{"n": {}}],
    ),
    "oneOf of required": (
        obj({"a": INTEGER, "b": INTEGER}, oneOf=[{"required": ["a"]}, {"required": ["b"]}]),
        [{"a": 1}, {"b": 1}], [{}, {"a": 1, "b": 1}],
    ),
    "oneOf by a tag": (
        {"oneOf": [obj({"t": {"const": "p"}, "p": INTEGER}, "t"), obj({"t": {"const": "q"}, "q": INTEGER}, "t")]},
        [{"t": "p", "p": 1}, {"t": "q"}], [{"t": "p", "q": 1}, {"t": "r"}],
    ),
    "oneOf of numbers": (
        {"type": "integer", "oneOf": [{"minimum": 10}, {"maximum": 20}]}, [5, 25], [15],
    ),
    "oneOf of types": ({"oneOf": [INTEGER, STRING, {"type": "null"}]}, [1, "x", None], [True, 1.5]),
    "if, then, else": (
        obj({"kind": {"enum": ["a", "b"]}, "n": INTEGER}, "kind", **{
            "if": {"properties": {"kind": {"const": "a"}}}, "then": {"required": ["n"]},
            "else": {"properties": {"n": False}}}),
        [{"kind": "a", "n": 1}, {"kind": "b"}], [{"kind": "a"}, {"kind": "b", "n": 1}],
    ),
    "not const": ({"type": "string", "not": {"enum": ["no", "never"]}}, ["", "n", "nob", "yes"], ["no", "never"]),
    "not required": (obj({"a": INTEGER, "b": INTEGER}, **{"not": {"required": ["b"]}}), [{"a": 1}, {}], [{"b": 1}]),
    "not a type": ({"not": {"type": ["object", "array", "string"]}}, [1, None, True], [{}, [], ""]),
    "not within limits": ({"type": "integer", "not": {"minimum": 3}}, [2, -9], [3]),
    "dependentRequired": (
        obj({"a": INTEGER, "b": INTEGER}, dependentRequired={"a": ["b"]}),
        [{"b": 1}, {}, {"a": 1, "b": 1}], [{"a": 1}],
    ),
    "dependencies": (
        obj({"a": INTEGER}, dependencies={"a": {"properties": {"c": STRING}, "required": ["c"]}}),
        [{}, {"a": 1, "c": ""}], [{"a": 1}],
    ),
    "propertyNames": (obj(propertyNames={"pattern": "^[a-c]+$"}), [{}, {"ab": 1}], [{"d": 1}]),
    "propertyNames, listed": (
        obj(propertyNames={"enum": ["a", "b"]}, additionalProperties=INTEGER),
        [{"a": 1, "b": 2}], [{"c": 1}, {"a": ""}],
    ),
    "minProperties": (obj({"a": INTEGER, "b": INTEGER}, minProperties=1), [{"a": 1}, {"b": 1}], [{}]),
    "as many as there are": (obj({"a": INTEGER, "b": INTEGER}, minProperties=2), [{"a": 1, "b": 1}], [{"a": 1}]),
    "a map of a size": (obj(additionalProperties=INTEGER, minProperties=1, maxProperties=2), [{"a": 1}], [{}]),
    "patternProperties": (
        obj(patternProperties={"^a": INTEGER, "^b": STRING}, additionalProperties=False),
        [{"a1": 1, "b1": ""}], [{"a1": ""}, {"c": 1}],
    ),
    "patterns that overlap: all of them hold": (
        obj(patternProperties={"^a": {"type": "integer", "minimum": 5}, "b$": {"type": "integer", "maximum": 7}}),
        [{"ab": 6}, {"c": "any"}], [{"ab": 9}],
    ),
    "a listed property that a pattern matches": (
        obj({"ab": {"minimum": 5}}, patternProperties={"^a": INTEGER}), [{"ab": 5}], [{"ab": 4}, {"ab": "x"}],
    ),
    "draft 4": (
        {"$schema": "http://json-schema.org/draft-04/schema#", "id": "http://example.com/root.json",
         "definitions": {"n": {"id": "#number", "type": "integer", "minimum": 3, "exclusiveMinimum": True}},
         "type": "array", "items": [{"$ref": "#number"}, {"$ref": "root.json#/definitions/n"}],
         "additionalItems": False},
        [[4], [4, 9]], [[3], [4, 3], [4, 4, 4]],
    ),
    "names of another draft are none": (
        {"definitions": {"n": INTEGER}, "type": "object", "id": "http://example.com/a", "properties": {
            "a": {"id": "/properties/a", "$ref": "#/definitions/n"}}},
        [{"a": 1}], [{"a": ""}],
    ),
    "anchors": (
        {"$defs": {"n": {"$anchor": "number", "type": "integer"}}, "type": "array", "items": {"$ref": "#number"}},
        [[1]], [["x"]],
    ),
    "a resource within": (
        {"$id": "https://example.com/a", "$defs": {"b": {"$id": "b", "$defs": {"c": INTEGER}, "$ref": "#/$defs/c"}},
         "$ref": "b"},
        [1], ["x"],
    ),
    "names that are no URI": ({"$defs": {"A <b, c>": INTEGER, "d/e~f": STRING},
                               "anyOf": [{"$ref": "#/$defs/A <b, c>"}, {"$ref": "#/$defs/d~1e~0f"}]}, [1, ""], [None]),
    "a reference to anywhere": (obj({"a": INTEGER, "b": {"$ref": "#/properties/a"}}), [{"b": 1}], [{"b": ""}]),
    "prefixItems": (
        {"type": "array", "prefixItems": [INTEGER, STRING], "items": False}, [[], [1], [1, ""]], [[""], [1, "", 2]],
    ),
    "unevaluatedProperties": (
        {"allOf": [obj({"a": INTEGER})], "properties": {"b": INTEGER}, "unevaluatedProperties": False},
        [{"a": 1, "b": 1}], [{"c": 1}],
    ),
    "unevaluatedItems": (
        {"type": "array", "allOf": [{"prefixItems": [INTEGER]}], "unevaluatedItems": STRING},
        [[], [1], [1, "x"]], [["x"], [1, 2]],
    ),
    "a type that is left out": ({"properties": {"a": INTEGER}}, [{"a": 1}], [1, "x"]),
    "type lists": ({"type": ["integer", "null"], "minimum": 3}, [3, None], [2, ""]),
    "nullable is OpenAPI's own": ({"type": "string", "nullable": True}, [""], [None]),
    "const objects": ({"const": {"a": [1, {"b": None}]}}, [{"a": [1, {"b": None}]}], [{"a": [1]}]),
    "enum of any type": ({"enum": [1, "a", None, [2]]}, [1, "a", None, [2]], [2, "b"]),
    "enum and type": ({"type": "string", "enum": ["a", None, 3]}, ["a"], [None, 3]),
    "enum and pattern": ({"enum": ["ab", "cd"], "pattern": "^a"}, ["ab"], ["cd"]),
    "limits beyond 64 bits": ({"type": "integer", "minimum": 0, "maximum": 18446744073709551615}, [0, 10**15], [-1]),
    "patterns as JavaScript has them": (
        {"type": "string", "pattern": r"^\/[^\]\[]{2}\_[[a]\u0041{$"}, ["/xy_aA{", "/xy_[A{"], ["/xy_bA{"],
    ),
    "several patterns": (
        {"type": "string", "maxLength": 5, "allOf": [{"pattern": "^a"}, {"pattern": "b$"}]}, ["ab", "a-b"], ["a", "b"],
    ),
    "look-ahead": (
        {"type": "string", "maxLength": 8, "pattern": r"^(?!aws:|no$)(?!.*--)(?!.*[-]$)(?=.{2,6}$)[a-z:-]+$"},
        ["ab", "no-b", "aws-a", "not"], ["aws:b", "no", "a--b", "ab-", "a", "abcdefg"],
    ),
    "look-ahead everywhere": (
        {"type": "string", "maxLength": 4, "pattern": "^((?!aab).)*$"}, ["aaa", "ab"], ["aaab"],
    ),
    "look-ahead in names": (
        obj(patternProperties={"^(?!x-).+$": INTEGER}, additionalProperties=False), [{"y": 1}], [{"x-y": 1}, {"": 1}],
    ),
    "not a pattern of texts": ({"type": "string", "maxLength": 4, "not": {"pattern": "^a|b$"}}, ["ca"], ["ac", "cb"]),
    "minProperties of an open object": (
        obj({"a": INTEGER}, minProperties=1, additionalProperties=INTEGER), [{"a": 1}, {"b": 1}], [{}],
    ),
    "minProperties beyond what is required": (
        obj({"a": INTEGER, "b": INTEGER, "c": INTEGER}, "a", minProperties=2), [{"a": 1, "c": 1}], [{"a": 1}],
    ),
    "maxProperties: what is required and no more": (
        obj({"a": INTEGER, "b": INTEGER}, "a", maxProperties=1, additionalProperties=True),
        [{"a": 1}], [{"a": 1, "b": 1}, {"a": 1, "c": 1}],
    ),
    "annotations": (
        {"type": "integer", "title": "1", "x-unknown": {"type": "no"}, "default": "x", "examples": [{}]}, [1], [""],
    ),
    "formats": (
        {"type": "array", "prefixItems": [{"format": "date"}, {"format": "uuid"}, {"format": "json-pointer"}],
         "items": {"format": "no such"}},
        [["2024-02-29", "01234567-89ab-cdef-0123-456789abcdef", "/a~0", "any"]], [["x"], ["2024-13-01"]],
    ),
    "booleans": (obj({"a": True, "b": False}), [{"a": []}], [{"b": 1}]),
    "one schema in many places": (
        {"$defs": {"wide": obj({f"k{at}": {"$ref": "#/$defs/wide"} for at in range(900)})},
         "allOf": [{"$ref": "#/$defs/wide"}, {"properties": {"k0": {"required": ["k1"]}}}]},
        [{}, {"k0": {"k1": {}}, "k899": {}}], [{"k0": {}}],
    ),
    "patterns and listed properties that contain each other": (
        {"$defs": {"any": {"anyOf": [STRING, {"$ref": "#/$defs/map"}]},
                   "map": obj({"kind": {"$ref": "#/$defs/any"}, "_n": INTEGER}, patternProperties={
                       "^[a-z]": {"anyOf": [{"$ref": "#/$defs/any"}, INTEGER]}}, additionalProperties=False)},
         "$ref": "#/$defs/map"},
        [{"kind": {"kind": "x"}, "_n": 1}], [{"kind": 1}, {"_n": ""}],
    ),
    "a condition for each of many kinds": (
        obj({"kind": {"enum": [f"k{at}" for at in range(20)]}}, "kind", allOf=[
            {"if": {"properties": {"kind": {"const": f"k{at}"}}}, "then": {"required": [f"p{at}"]}}
            for at in range(20)
        ]),
        [{"kind": "k3", "p3": 1}, {"kind": "k19", "p19": 1}], [{"kind": "k3"}, {"kind": "k3", "p4": 1}],
    ),
    "many conditions: those that are too many are left out": (
        obj({"n": INTEGER}, allOf=[{"if": {"required": [f"a{at}"]}, "then": {"required": ["n"]}} for at in range(20)]),
        [{"n": 1}], [{"n": ""}],
    ),
    "everything": ({}, [{}, [], 1, "x", None], []),
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_obeyed(name: str) -> None:
    schema, obeying, others = SCHEMAS[name]
    chance = random.Random(name)
    validator = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)(schema)
    for value in obeying:
        validator.validate(value)
        assert takes(schema, value), value
    for value in others:
        assert not takes(schema, value), value
    for _ in range(5):
        validator.validate(walk(schema, chance))


NOT_ENFORCED: dict[str, tuple[dict[str, Any], Any]] = {
    # keyword: a schema, and a value that does not obey it but can be written
    "uniqueItems": ({"type": "array", "items": INTEGER, "uniqueItems": True}, [1, 1]),
    "contains": ({"type": "array", "contains": {"const": 1}}, [2]),
    "minContains": ({"type": "array", "contains": {"const": 1}, "minContains": 2}, [1]),
    "maxContains": ({"type": "array", "contains": {"const": 1}, "maxContains": 1}, [1, 1]),
    "contentEncoding": ({"type": "string", "contentEncoding": "base64"}, "%"),
    "contentMediaType": ({"type": "string", "contentMediaType": "application/json"}, "{"),
    "contentSchema": ({"type": "string", "contentMediaType": "application/json", "contentSchema": INTEGER}, "null"),
    "look-behind": ({"type": "string", "pattern": "(?<!a)b"}, "ab"),
    "look-ahead of more than texts": ({"type": "string", "pattern": "^(?!a+b)"}, "ab"),
    "word boundaries": ({"type": "string", "pattern": r"\bab"}, "cab"),
    "back references": ({"type": "string", "pattern": r"^(.)\1$"}, "ab"),
    "not, of a pattern": ({"type": "string", "not": {"pattern": "^a+"}}, "ab"),
    "other formats": ({"type": "string", "format": "uri-template"}, "{"),
}


@pytest.mark.parametrize("name", NOT_ENFORCED)
def test_what_no_grammar_can_follow_is_passed_over(name: str) -> None:
    schema, value = NOT_ENFORCED[name]
    assert takes(schema, value)


def documented() -> dict[str, str]:
    """What docs/text.md says of each keyword."""
    text = (Path(__file__).parents[2] / "docs/text.md").read_text().partition("### JSON schemas")[2].partition("## ")[0]
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return {keyword: row[1] for row in rows for keyword in re.findall("`([^`]+)`", row[0])}


def test_the_documentation_names_every_keyword_and_what_is_not_enforced() -> None:
    said = documented()
    annotations = {"contentEncoding", "contentMediaType", "contentSchema"}
    assert said.keys() == (ASSERTIONS - {EXCEPT}) | annotations
    not_enforced = {keyword for keyword, text in said.items() if text.startswith("not enforced")}
    assert not_enforced == {keyword for keyword in NOT_ENFORCED if keyword in said}


def test_the_documentation_names_the_formats_that_are_enforced() -> None:
    known, _, rest = documented()["format"].partition("are enforced")
    ascii_only = rest.partition("in ASCII")[0]
    names = re.findall("`([^`]+)`", known + ascii_only)
    assert len(names) > 15
    for name in names:
        assert not takes({"type": "string", "format": name}, "no \u00e9 such # # ~ thing"), name
    for name in ("uri-template", "regex", "password", "int32"):
        assert takes({"type": "string", "format": name}, "no \u00e9 such # # ~ thing"), name


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "nowhere": (obj({"a": {"$ref": "#/$defs/a"}}), '"$ref" leads to #/$defs/a, which is not in the schema'),
    "itself": ({"$ref": "#"}, '"$ref" leads to itself'),
    "no value": (obj({"a": False}, "a"), "no value obeys it"),
    "no value, in parts": ({"allOf": [STRING, INTEGER]}, "no value obeys it"),
    "lengths the wrong way round": ({"type": "string", "minLength": 5, "maxLength": 3}, "no value obeys it"),
    "no end": (
        {"$defs": {"a": obj({"a": {"$ref": "#/$defs/a"}}, "a")}, "$ref": "#/$defs/a"}, "no value obeys it",
    ),
    "an unknown type": (
        {"type": "text"}, '"type" must be one of null, boolean, integer, number, string, array, object, not text',
    ),
    "a list that is none": ({"anyOf": {}}, '"anyOf" must be a list'),
    "a schema that is none": (obj({"a": "string"}), '"properties/a" must be a schema, not "string"'),
    "a number that is none": ({"type": "string", "minLength": "3"}, '"minLength" must be a number'),
    "a count that is none": ({"type": "array", "maxItems": -1}, '"maxItems" must be a whole number of at least 0'),
    "a limit out of reach": ({"type": "integer", "minimum": 1e30}, '"minimum" must be between -4e+18 and 4e+18'),
    "a wide object, in parts": (
        {"allOf": [obj({f"k{at}": INTEGER for at in range(start, start + 600)}) for start in (0, 600)]},
        "an object of the JSON schema lists more than 1000 properties",
    ),
    "many patterns": (
        obj(patternProperties={f"^a{at}$": True for at in range(101)}),
        '"patternProperties" may list 100 patterns at most',
    ),
    "references without end": (
        {"$defs": {f"d{at}": {"$ref": f"#/$defs/d{at + 1}"} for at in range(5000)}, "$ref": "#/$defs/d0"},
        "it is nested too deeply",
    ),
    "a product of choices": (
        obj(allOf=[{"anyOf": [{"required": [f"a{at}"]}, {"required": [f"b{at}"]}]} for at in range(15)]),
        "it is too large for a grammar; simplify it",
    ),
    "a large multiple": ({"type": "integer", "multipleOf": 10_007}, '"multipleOf" may be 10000 at most'),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_schema_that_cannot_be_used_is_refused_in_one_sentence(name: str) -> None:
    schema, message = REFUSED[name]
    with pytest.raises(GrammarError) as refused:
        matcher(schema)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        (obj({"config": "object"}), '"properties/config" must be a schema, not "object"'),
        ({"anyOf": [INTEGER, obj({"a": {"allOf": [BOOLEAN, 3]}})]}, '"properties/a/allOf/1" must be a schema, not 3'),
    ],
)
def test_what_is_no_schema_is_refused_with_the_keys_that_lead_to_it(schema: dict[str, Any], named: str) -> None:
    with pytest.raises(GrammarError) as refused:
        matcher(schema)
    assert named in str(refused.value)


def test_a_reference_to_the_whole_may_be_written_with_a_slash() -> None:
    schema = obj({"n": INTEGER, "child": {"$ref": "#/"}}, "n")
    assert takes(schema, {"n": 1, "child": {"n": 2}})
    assert not takes(schema, {"n": 1, "child": {}})
