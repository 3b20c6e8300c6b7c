"""Replies that have to be calls: whatever a model would write, the grammar makes it calls that the parser reads.

A *wild writer* stands for the model: of the tokens that the grammar allows it takes any. What comes out is read by
the family's parser, and its arguments must obey the tool's schema.
"""

from __future__ import annotations

import os
import random
import re
from typing import Annotated, Any, Literal

import jsonschema
import msgspec
import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from omlx.engine.grammar import GrammarCompiler
from omlx.engine.grammar_text import GrammarError
from omlx.engine.guide import make_guide
from omlx.messages.constraint import Grammar, ThinkLimit
from omlx.messages.request import GenerateRequest, Limits, Message, ToolCall
from omlx.prompting.constraint import constrain, limit_thinking
from omlx.prompting.output import OutputDialect, OutputParser, Segment, detect_output
from tests.prompting.families import FAMILIES, Family
from tests.prompting.test_families import ASK, prompt

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "maxLength": 12},
                    "days": {"type": "integer", "minimum": 1, "maximum": 14},
                    "unit": {"enum": ["C", "F"]},
                    "place": {"$ref": "#/$defs/place"},
                    "exact": {"type": "boolean"},
                },
                "required": ["city", "unit"],
                "$defs": {
                    "place": {
                        "type": "object",
                        "properties": {"lat": {"type": "integer", "minimum": -90, "maximum": 90}},
                        "required": ["lat"],
                        "additionalProperties": False,
                    }
                },
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
    {"type": "function", "function": {"name": "note", "parameters": {
        "type": "object", "properties": {"at": {"type": "integer"}, "tags": {"type": "array", "items": {
            "enum": ["a", "b"]}, "maxItems": 3}}}}},
]  # fmt: skip


class Place(msgspec.Struct, forbid_unknown_fields=True):
    lat: Annotated[int, msgspec.Meta(ge=-90, le=90)]


class Weather(msgspec.Struct, forbid_unknown_fields=True):
    """The schema's own words, for msgspec to check."""

    city: str
    unit: Literal["C", "F"]
    days: Annotated[int, msgspec.Meta(ge=1, le=14)] = 1
    place: Place | None = None
    exact: bool = False


class Now(msgspec.Struct, forbid_unknown_fields=True):
    pass


class Note(msgspec.Struct, forbid_unknown_fields=True):
    at: int = 0
    tags: Annotated[list[Literal["a", "b"]], msgspec.Meta(max_length=3)] = []


ARGUMENTS: dict[str, type] = {"weather": Weather, "now": Now, "note": Note}
HARMONY = Family("harmony", "", tools="<|channel|><|message|><|end|><|start|><|constrain|>")
END = "<|wild_end|>"


MARKS = re.compile(
    r"<[|｜][^<>]*?[|｜]>|\]<\]minimax\[>\[|<\|tool_call>|<tool_call\|>|<\|\"\|>|\[[A-Z_]+\]|<(?:escape|(?:start|end)_function_call)>"
    r"|</?(?:tool_call|think|arg_key|arg_value)(?::v3)?>|</steptml:parameter>"
)


def markers(family: Family) -> list[str]:
    """The family's markers that are tokens, as in its vocabulary."""
    # Llama's JSON has no marker; what tells it is a token that its vocabulary has.
    own = ["<|python_tag|>"] if family.name == "llama3" else []
    return own + list(dict.fromkeys(MARKS.findall(family.before + family.behind + family.call + family.tools)))


def tokenizer_of(family: Family) -> Tokenizer:
    """Bytes, and the family's markers as tokens of their own."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: at for at, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(text, special=True, normalized=False) for text in (END, *markers(family))])
    return tokenizer


class Wild:
    """Writes what the grammar allows: mostly letters while they are, and the way out as soon as there is one."""

    def __init__(self, family: Family) -> None:
        self.tokenizer = tokenizer_of(family)
        self.end = self.tokenizer.token_to_id(END)
        self.added = {token.content: at for at, token in self.tokenizer.get_added_tokens_decoder().items()}
        self.size = self.tokenizer.get_vocab_size()
        self.leaving = {self.tokenizer.token_to_id(text) for text in ('"', "<", "\u010a", "}", "]", ",")}
        self.way_out = self.tokenizer.encode("\n</parameter>\n").ids
        self.compiler = GrammarCompiler(self.tokenizer, self.size, {self.end})

    def write(self, grammar: Grammar, seed: int) -> str:
        chance = random.Random(seed)
        guide = make_guide(self.compiler, self.tokenizer, {self.end}, grammar, None)
        assert guide is not None
        tokens: list[int] = []
        plan: list[int] = []
        bits = np.zeros(self.compiler.words, np.uint32)
        while not guide.complete:
            guide.mask_into(bits)
            allowed = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")[: self.size]).tolist()
            assert allowed, self.tokenizer.decode(tokens, skip_special_tokens=False)
            if self.end in allowed and chance.random() < 0.5:
                break
            # Where a text may end it often does, or the writer would babble on.
            plan = plan or (self.way_out if chance.random() < 0.1 else [])
            closing = [at for at in allowed if at in self.leaving]
            pick = closing if closing and chance.random() < 0.5 else [at for at in allowed if at != self.end]
            if not pick:
                break
            token, plan = (plan[0], plan[1:]) if plan and plan[0] in allowed else (chance.choice(pick), [])
            tokens.append(token)
            guide.accept(tokens[-1], self.tokenizer.decode([tokens[-1]], skip_special_tokens=False))
            assert len(tokens) < 6000
        return str(self.tokenizer.decode(tokens, skip_special_tokens=False))


def dialect_of(family: Family, wild: Wild) -> OutputDialect:
    return detect_output(HARMONY.tools if family is HARMONY else family.template(), list(wild.added), "")


def grammar_for(dialect: OutputDialect, wild: Wild, **request: Any) -> Grammar:
    wanted = GenerateRequest(id=1, tools=TOOLS, think=False, **request)
    found = constrain(wanted, dialect, wild.added, opens_thinking=False)
    assert found is not None
    return found


def calls_in(
    dialect: OutputDialect, text: str, tools: list[dict[str, Any]] | None = None
) -> tuple[list[ToolCall], str]:
    parser = OutputParser(dialect, tools=TOOLS if tools is None else tools)
    segments = [*parser.feed(text), *parser.finish()]
    return [segment.call for segment in segments if segment.call], "".join(segment.text for segment in segments)


NO_FORMAT = {"llama4", "gemma2", "zephyr"}
"""Their templates name no format: a call that they have to make is plain JSON."""


@pytest.mark.parametrize("family", [one for one in FAMILIES if one.name not in NO_FORMAT], ids=lambda one: one.name)
def test_a_call_as_the_family_writes_it_is_allowed(family: Family) -> None:
    wild = Wild(family)
    grammar = grammar_for(dialect_of(family, wild), wild, must_call=True)
    paris, now = (
        ToolCall("weather", {"city": "Paris é", "days": 3, "unit": "C"}, "call_1"),
        ToolCall("now", {}, "call_2"),
    )
    for calls in ([paris], [paris] if family.one_call else [paris, now]):
        before = prompt(family, ASK, tools=TOOLS, think=False)
        told = prompt(family, ASK, Message("assistant", tool_calls=calls), ASK, tools=TOOLS, think=False)
        start = len(os.path.commonprefix([before, told]))  # noqa: RUF071
        start = start if start == len(before) else told.rfind(family.answer[0], 0, start)
        written = told[start:].removeprefix(family.answer[0]).partition(family.answer[1] + family.user[0])[0]
        matcher = wild.compiler.matcher(grammar)
        tokens = wild.tokenizer.encode(written, add_special_tokens=False).ids
        assert matcher.try_consume_tokens(tokens) == len(tokens), written
        assert matcher.is_accepting()


@pytest.mark.parametrize("family", [*FAMILIES, HARMONY], ids=lambda family: family.name)
def test_a_reply_that_must_be_a_call_is_one(family: Family) -> None:
    wild = Wild(family)
    dialect = dialect_of(family, wild)
    for seed in range(3):
        text = wild.write(grammar_for(dialect, wild, must_call=True), seed)
        calls, rest = calls_in(dialect, text)
        assert calls, text
        assert not rest.strip() or family is HARMONY, text
        for call in calls:
            msgspec.convert(call.arguments, ARGUMENTS[call.name])
        one, _ = calls_in(dialect, wild.write(grammar_for(dialect, wild, must_call="weather", one_call=True), seed))
        assert [call.name for call in one] == ["weather"]


def test_thinking_of_muse_glimmer_ends_with_a_message_to_the_user() -> None:
    muse = detect_output("<atem:function_calls><|eom|>", [], "")
    wanted = GenerateRequest(id=1, tools=TOOLS, limits=Limits(think_budget=9))
    for must_call, ending in (
        (False, "<|eom|><|start|>assistant to=user<|message|>"),
        (True, "<|eom|><|start|>assistant"),
    ):
        limit = limit_thinking(msgspec.structs.replace(wanted, must_call=must_call), muse, opens_thinking=False)
        assert limit == ThinkLimit(
            budget=9, opening=" to=self<|message|>", closing="<|eom|>", ending=ending, open=False, anywhere=True
        )
    written = " to=self<|message|>I think<|eom|><|start|>assistant to=user<|message|>Hi"
    parser = OutputParser(muse, tools=TOOLS)
    assert [*parser.feed(written), *parser.finish()] == [Segment("thinking", "I think"), Segment("content", "Hi")]


def test_thinking_comes_before_what_is_asked_for() -> None:
    thinker = detect_output("<think></think><tool_call>", [], "")
    wanted = GenerateRequest(id=1, tools=TOOLS, must_call=True, limits=Limits(think_budget=9))
    for opens, opening in ((False, "<think>"), (True, "")):
        found = constrain(wanted, thinker, {}, opens_thinking=opens)
        assert found is not None
        assert (found.opening, found.after) == (opening, "</think>")
        limit = ThinkLimit(9, "<think>", "</think>", "\n</think>", opens)
        assert limit_thinking(wanted, thinker, opens_thinking=opens) == limit
    # gpt-oss goes on with a message of another channel: its answer or, where it owes one, its call.
    harmony = detect_output(HARMONY.tools, [], "gpt_oss")
    endings = []
    for must_call in (True, False):
        limit = limit_thinking(msgspec.structs.replace(wanted, must_call=must_call), harmony, opens_thinking=False)
        assert limit is not None and limit.anywhere
        endings.append(limit.ending)
    assert endings == ["<|end|><|start|>assistant", "<|end|><|start|>assistant<|channel|>final<|message|>"]


def test_nothing_is_held_to_anything_without_need() -> None:
    free = GenerateRequest(id=1, tools=TOOLS)
    thinker = detect_output("<think></think><tool_call>", [], "")
    assert constrain(free, thinker, {}, opens_thinking=False) is None
    assert limit_thinking(free, thinker, opens_thinking=True) is None
    raw = GenerateRequest(id=1, raw_prompt="x", tools=TOOLS, must_call=True, limits=Limits(think_budget=1))
    assert constrain(raw, thinker, {}, opens_thinking=False) is None
    assert limit_thinking(raw, thinker, opens_thinking=False) is None


def test_only_the_first_call_is_passed_on_where_one_is_wanted() -> None:
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    parser = OutputParser(detect_output("<tool_call>", [], ""), tools=TOOLS, one_call=True)
    segments = [*parser.feed("I look."), *parser.feed(call), *parser.feed(f"\n{call} done"), *parser.finish()]
    assert [segment.kind for segment in segments] == ["content", "tool_call"]
    assert parser.ended


WHOLE: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "order",
            "parameters": {
                "type": "object",
                "$defs": {
                    "unit": {"type": "string", "enum": ["c", "f"]},
                    "count": {"type": "integer", "minimum": 100, "maximum": 105},
                    "word": {"type": "string", "minLength": 3, "maxLength": 6},
                    "base": {"properties": {"id": {"$ref": "#/properties/n"}}, "required": ["id"]},
                },
                "allOf": [{"$ref": "#/$defs/base"}],
                "properties": {
                    "u": {"$ref": "#/$defs/unit"},
                    "n": {"$ref": "#/$defs/count"},
                    "fixed": {"const": "always"},
                    "size": {"oneOf": [{"const": 1}, {"const": 2}]},
                    "list": {"type": "array", "items": {"$ref": "#/$defs/count"}, "minItems": 1, "maxItems": 2},
                    "word": {"$ref": "#/$defs/word"},
                    "code": {"allOf": [{"type": "string"}, {"pattern": "^[A-Z]{2}-[0-9]+$"}, {"maxLength": 7}]},
                    "when": {"type": "string", "format": "date"},
                    "maybe": {"type": ["string", "null"], "enum": ["x", None]},
                },
                "required": ["u", "n", "fixed", "size", "list", "word", "code", "when", "maybe"],
            },
        },
    }
]


@pytest.mark.parametrize("must_call", [True, False], ids=["forced", "strict"])
@pytest.mark.parametrize("family", [*FAMILIES, HARMONY], ids=lambda family: family.name)
def test_the_whole_schema_of_a_tool_holds(family: Family, must_call: bool) -> None:
    wild = Wild(family)
    dialect = dialect_of(family, wild)
    wanted = GenerateRequest(id=1, tools=WHOLE, think=False, must_call=must_call, strict_tools=not must_call)
    found = constrain(wanted, dialect, wild.added, opens_thinking=False)
    assert found is not None
    parameters = WHOLE[0]["function"]["parameters"]
    validator = jsonschema.Draft202012Validator(parameters, format_checker=jsonschema.FormatChecker())
    seen = 0
    for seed in range(2):
        text = wild.write(found, seed)
        parser = OutputParser(dialect, tools=WHOLE)
        calls = [segment.call for segment in [*parser.feed(text), *parser.finish()] if segment.call]
        for call in calls:
            validator.validate(call.arguments)
            assert set(call.arguments) <= {"u", "n", "fixed", "size", "list", "id", "word", "code", "when", "maybe"}
        seen += len(calls)
    assert seen or not must_call


def test_minimax_m3_writes_objects_and_arrays_as_elements() -> None:
    word, age = {"type": "string", "maxLength": 8}, {"type": "integer", "minimum": 0, "maximum": 120}
    person = {"type": "object", "properties": {"name": word, "age": age}}
    parameters = {
        "type": "object",
        "$defs": {"person": {**person, "required": ["name"]}},
        "properties": {
            "people": {"type": "array", "items": {"$ref": "#/$defs/person"}, "minItems": 1, "maxItems": 2},
            "tree": {
                "type": "object",
                "properties": {"item": word, "empty": {"type": "array", "items": age}},
            },
            "odd": {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": age},
        },
        "required": ["people"],
    }
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    family = next(one for one in FAMILIES if one.name == "minimax-m3")
    wild = Wild(family)
    dialect = dialect_of(family, wild)
    found = constrain(
        GenerateRequest(id=1, tools=tools, think=False, must_call=True), dialect, wild.added, opens_thinking=False
    )
    assert found is not None
    ns = "]<]minimax[>["

    def written(inner: str) -> str:
        return f'{ns}<tool_call>\n{ns}<invoke name="f">{inner}{ns}</invoke>\n{ns}</tool_call>'

    def element(name: str, *inner: str) -> str:
        return f"{ns}<{name}>{''.join(inner)}{ns}</{name}>"

    def accepts(text: str) -> bool:
        matcher = wild.compiler.matcher(found)
        tokens = wild.tokenizer.encode(text, add_special_tokens=False).ids
        return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())

    ann = element("item", element("name", "Ann"), element("age", "3"))
    text = written(element("people", ann) + element("tree", element("item", "x"), element("empty")))
    assert accepts(text)
    (call,), _ = calls_in(dialect, text, tools)
    assert call.arguments == {"people": [{"name": "Ann", "age": 3}], "tree": {"item": "x", "empty": []}}
    assert accepts(written(element("people", ann) + element("tree") + element("odd", '{"a": 1}')))
    assert not accepts(written(element("people")))
    assert not accepts(written(element("people", ann, ann, ann)))
    assert not accepts(written(element("people", element("item", element("age", "3")))))
    assert not accepts(written(element("people", element("item", element("name", "Ann"), element("age", "121")))))
    validator = jsonschema.Draft202012Validator(parameters)
    for seed in range(4):
        calls, _ = calls_in(dialect, wild.write(found, seed), tools)
        assert calls
        for call in calls:
            validator.validate(call.arguments)


@pytest.mark.parametrize("family", [*FAMILIES, HARMONY], ids=lambda family: family.name)
def test_a_reply_with_strict_tools_may_be_text_or_a_call_that_obeys(family: Family) -> None:
    wild = Wild(family)
    dialect = dialect_of(family, wild)

    def accepts(text: str) -> bool:
        matcher = wild.compiler.matcher(found)
        tokens = wild.tokenizer.encode(text, add_special_tokens=False).ids
        return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())

    wanted = GenerateRequest(id=1, tools=WHOLE, think=False, strict_tools=True)
    found = constrain(wanted, dialect, wild.added, opens_thinking=False)
    assert found is not None
    forced = constrain(msgspec.structs.replace(wanted, must_call=True), dialect, wild.added, opens_thinking=False)
    assert forced is not None
    call = wild.write(forced, 1)
    if family is HARMONY:
        assert accepts("<|channel|>final<|message|>A text, {and} [more].")
        assert accepts(call)
    else:
        assert accepts("A text, {and} [more].\n< It goes on.")
        assert accepts(call)
    number = re.search(r"10[0-5]", call)
    assert number is not None
    assert not accepts(call[: number.start()] + "999" + call[number.end() :])


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": 3},
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": [["x"]]},
        {"type": "array", "items": {"type": "string"}, "minItems": "2"},
        {"type": "array", "items": {"type": "string"}, "maxItems": 10**9},
        {"type": "array", "items": {"type": "string"}, "maxItems": True},
        {"type": "string", "pattern": 3, "minLength": None},
        {"$ref": "#/properties/odd"},
    ],
)
def test_an_odd_schema_of_one_argument_ends_nothing(schema: dict[str, Any]) -> None:
    """It is written in some form, or refused where it is compiled."""
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"odd": schema}}}}]
    for family in FAMILIES:
        wild = Wild(family)
        wanted = GenerateRequest(id=1, tools=tools, think=False, must_call=True)
        found = constrain(wanted, dialect_of(family, wild), wild.added, opens_thinking=False)
        assert found is not None
        try:
            wild.compiler.matcher(found)
        except GrammarError as error:
            assert "odd" in str(error) or '"' in str(error)


def test_a_schema_that_multiplies_by_references_stays_small() -> None:
    node = {"type": "object", "properties": {f"p{at}": {"$ref": "#/$defs/node"} for at in range(40)}}
    parameters = {"$defs": {"node": node}, "properties": {"tree": {"$ref": "#/$defs/node"}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    family = next(one for one in FAMILIES if one.name == "minimax-m3")
    wild = Wild(family)
    wanted = GenerateRequest(id=1, tools=tools, think=False, must_call=True)
    found = constrain(wanted, dialect_of(family, wild), wild.added, opens_thinking=False)
    assert found is not None
    assert len(found.source) < 100_000 and len(found.schemas) < 300
