"""What a tool's schema says of several arguments together holds where each argument is written by itself."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from omlx.messages.request import GenerateRequest
from omlx.prompting.constraint import constrain
from omlx.prompting.tools.ways import MAX_WAYS, ways_of
from tests.prompting.families import FAMILIES
from tests.prompting.test_forced_calls import Wild, calls_in, dialect_of

KINDS = {"a": {"enum": ["x", "y"]}, "b": {"type": "integer", "minimum": 0, "maximum": 9}, "c": {"type": "boolean"}}
ELEMENTS = [
    family
    for family in FAMILIES
    if family.name in {"qwen3-coder", "glm4.5", "minimax-m2", "minimax-m3", "kimi-k3", "gemma4", "lfm2", "hunyuan-3"}
]


def obj(**more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": KINDS} | more


def needs(*names: str) -> dict[str, Any]:
    return {"required": list(names)}


def when(value: str) -> dict[str, Any]:
    return {"properties": {"a": {"const": value}}, "required": ["a"]}


SCHEMAS: dict[str, tuple[dict[str, Any], list[str]]] = {
    # name: schema, its ways; "!" stands behind what is required
    "plain": (obj(required=["b"]), ["a b! c"]),
    "any of": (obj(anyOf=[needs("a"), needs("b", "c")]), ["a! b c", "a b! c!"]),
    "one of": (obj(oneOf=[needs("a"), needs("b")]), ["a! c", "b! c"]),
    "one of, by a constant": (
        {"oneOf": [
            {"type": "object", "properties": {"k": {"const": "p"}, "n": KINDS["b"]}, "required": ["k", "n"]},
            {"type": "object", "properties": {"k": {"const": "q"}, "t": KINDS["c"]}, "required": ["k"]},
        ]},
        ["k! n!", "k! t"],
    ),
    "alternatives in definitions": (
        {"$defs": {"one": obj(required=["a"], additionalProperties=False)},
         "anyOf": [{"$ref": "#/$defs/one"}, {"properties": {"d": KINDS["c"]}, "required": ["d"]}]},
        ["a! b c", "d!"],
    ),
    "if, then and else": (
        obj(**{"if": when("x"), "then": needs("b"), "else": needs("c")}), ["a! b! c", "b c!", "a! b c!"],
    ),
    "dependentRequired": (obj(dependentRequired={"a": ["b"]}), ["b c", "a! b! c"]),
    "dependencies, of a schema": (obj(dependencies={"c": when("y")}), ["a b", "a! b c!"]),
    "not": (obj(**{"not": needs("a", "b")}), ["b c", "a c"]),
    "minProperties": (obj(minProperties=1), ["a! b c", "a b! c", "a b c!"]),
    "a closed alternative": (
        obj(allOf=[{"anyOf": [{"properties": {"a": True}, "additionalProperties": False}, needs("b", "c")]}]),
        ["a", "a b! c!"],
    ),
    "required but not listed": (obj(required=["d"]), ["a b c d!"]),
    "too many": (
        obj(allOf=[{"anyOf": [needs("a"), needs("b"), needs("c")]} for _ in range(4)]), ["a b c"],
    ),
    "itself": ({"properties": {"a": KINDS["a"]}, "allOf": [{"$ref": "#"}]}, ["a"]),
}  # fmt: skip


UNBOUNDED = {"too many", "itself", "required but not listed"}


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_ways_to_call_a_tool(name: str) -> None:
    schema, ways = SCHEMAS[name]
    found = ways_of(schema)
    assert len(found) <= MAX_WAYS
    assert [" ".join(one.name + "!" * one.required for one in way) for way in found] == ways


@pytest.mark.parametrize("family", ELEMENTS, ids=lambda family: family.name)
@pytest.mark.parametrize("name", [name for name in SCHEMAS if name not in UNBOUNDED])
def test_forced_calls_obey_what_holds_between_arguments(family: Any, name: str) -> None:
    schema, _ = SCHEMAS[name]
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    wild = Wild(family)
    dialect = dialect_of(family, wild)
    wanted = GenerateRequest(id=1, tools=tools, think=False, must_call=True)
    grammar = constrain(wanted, dialect, wild.added, opens_thinking=False)
    assert grammar is not None
    validator = jsonschema.Draft202012Validator(schema | {"type": "object"})
    for seed in range(2):
        text = wild.write(grammar, seed)
        calls, _ = calls_in(dialect, text, tools)
        assert calls, text
        for call in calls:
            validator.validate(call.arguments)


def test_each_argument_of_a_way_obeys_what_the_way_says_of_it() -> None:
    schema, _ = SCHEMAS["if, then and else"]
    family = next(family for family in ELEMENTS if family.name == "qwen3-coder")
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    wild = Wild(family)
    wanted = GenerateRequest(id=1, tools=tools, think=False, must_call=True)
    grammar = constrain(wanted, dialect_of(family, wild), wild.added, opens_thinking=False)
    assert grammar is not None

    def accepts(**arguments: str) -> bool:
        inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
        text = f"<tool_call>\n<function=f>\n{inner}</function>\n</tool_call>"
        matcher = wild.compiler.matcher(grammar)
        tokens = wild.tokenizer.encode(text, add_special_tokens=False).ids
        return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())

    assert accepts(a="x", b="3")
    assert accepts(a="y", c="true") and accepts(c="true")
    assert not accepts(a="x", c="true")
    assert not accepts(a="y", b="3")
    assert not accepts()
