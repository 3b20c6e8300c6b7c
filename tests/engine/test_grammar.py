"""Structured output: replies obey their grammar, several grammars share a batch, and free rows stay free."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import llguidance
import psutil
import pytest

from omlx.engine import grammar
from omlx.engine.decoder_process import DecoderPool
from omlx.engine.sequence import EngineError
from omlx.messages.constraint import Grammar
from omlx.messages.request import Sampling
from tests.engine.support import bare, engine, prompt, run, spec
from tests.engine.test_limits import chat
from tests.support.processes import command_line

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
COLOUR = {"type": "object", "properties": {"colour": {"enum": ["red", "green"]}}, "required": ["colour"]}
WILD = Sampling(temperature=1.2, seed=11, top_k=0)


def nested(levels: int, **inner: Any) -> dict[str, Any]:
    schema: dict[str, Any] = inner
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def doubling(levels: int) -> dict[str, Any]:
    """Each definition is used twice by the next, in a way that makes the compiler write all of it out."""
    definitions: dict[str, Any] = {"d0": {"type": "string"}}
    for level in range(1, levels):
        below = {"$ref": f"#/$defs/d{level - 1}"}
        definitions[f"d{level}"] = {"anyOf": [below, {"allOf": [below, below]}]}
    return {"$defs": definitions, "$ref": f"#/$defs/d{levels - 1}"}


HOSTILE: dict[str, dict[str, Any]] = {
    "deep": nested(300, type="string"),
    "bottomless": nested(20_000, type="string"),
    "wide": {"type": "object", "properties": {f"k{at}": {"type": "string"} for at in range(10_000)}},
    "large": {"enum": [str(at) for at in range(60_000)]},
    "a choice of everything": {
        "allOf": [
            {"anyOf": [{"type": "object", "properties": {f"a{i}{j}": {"type": "integer"}}} for j in range(9)]}
            for i in range(9)
        ]
    },
    "a huge automaton": {"type": "integer", "multipleOf": 7919 * 7907},
    "a huge automaton, in parts": {"allOf": [{"type": "integer", "multipleOf": at} for at in (7919, 7907)]},
    "itself": {"$ref": "#"},
    "impossible": {"type": "string", "minLength": 5, "maxLength": 3},
    "impossible, required": {"type": "object", "properties": {"a": False}, "required": ["a"]},
}


def test_each_row_obeys_its_own_grammar_and_free_rows_are_untouched() -> None:
    specs = [
        spec(0, prompt(12), new=120, sampling=WILD, grammar=Grammar(kind="schema", source=PERSON)),
        spec(1, prompt(12), new=120, sampling=WILD, grammar=Grammar(kind="schema", source=json.dumps(COLOUR))),
        spec(2, prompt(30, 2), new=40),
        spec(3, prompt(12), new=120, sampling=WILD, grammar=Grammar(kind="regex", source="[a-f]{3}-[0-9]{2}")),
        spec(4, prompt(12), new=120, sampling=WILD, grammar=Grammar(kind="lark", source='start: "yes" | "no"')),
        spec(5, prompt(12), new=120, sampling=WILD, grammar=Grammar(kind="gbnf", source='root ::= "a" [0-9] "z"')),
    ]
    replies = run(engine(), specs, every=2)
    person = json.loads(replies.text[0])
    assert set(person) == {"name", "age"} and 0 <= person["age"] <= 150
    assert json.loads(replies.text[1])["colour"] in {"red", "green"}
    assert replies.tokens[2] == bare("llama", prompt(30, 2), 40)
    assert re.fullmatch("[a-f]{3}-[0-9]{2}", replies.text[3])
    assert replies.text[4] in {"yes", "no"}
    assert re.fullmatch("a[0-9]z", replies.text[5])
    assert all(replies.ends[at].finish == "stop" for at in (0, 1, 3, 4, 5))


def test_any_json_object() -> None:
    replies = run(engine(taught=True), [spec(0, chat("json"), new=60, grammar=Grammar(kind="json"))])
    assert json.loads(replies.text[0]) == {"name": "Ada", "age": 36}


def test_the_grammar_begins_after_thinking() -> None:
    grammar = Grammar(kind="regex", source="[0-9]{3}", after="Paris")
    replies = run(engine(taught=True), [spec(0, chat("capital"), new=60, grammar=grammar)])
    assert re.fullmatch(r"The capital of France is Paris[0-9]{3}", replies.text[0])


def test_a_reply_that_may_think_first_obeys_the_grammar_where_it_does_not() -> None:
    grammar = Grammar(kind="json", opening="<think>", after="</think>")
    replies = run(engine(taught=True), [spec(0, chat("capital"), new=60, grammar=grammar)])
    assert replies.text[0].startswith("{")
    thinking = Grammar(kind="regex", source=r"\s*[0-9]{3}", opening="The capital of", after="Paris")
    replies = run(engine(taught=True), [spec(0, chat("capital"), new=60, grammar=thinking)])
    assert re.fullmatch(r"The capital of France is Paris\s*[0-9]{3}", replies.text[0])


def test_a_constrained_reply_is_the_same_alone_and_in_a_batch() -> None:
    constrained = spec(0, prompt(12), new=60, sampling=WILD, grammar=Grammar(kind="schema", source=PERSON))
    alone = run(engine(), [constrained])
    specs = [spec(at, prompt(9 * at, at), new=30, sampling=Sampling(seed=at)) for at in range(1, 4)]
    together = run(engine(), [*specs, constrained], every=3)
    assert together.tokens[0] == alone.tokens[0]


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar(kind="schema", source={"type": "no such type"}),
        Grammar(kind="regex", source="(unclosed"),
        Grammar(kind="lark", source="start: undefined_rule"),
        Grammar(kind="lark", source='start: %json {"type": "object"}'),
        Grammar(kind="lark", source="start: start"),
        Grammar(kind="regex", source="a" * 70_000),
        Grammar(kind="gbnf", source="root ::= (unclosed"),
        *(
            Grammar(kind=kind, source=start + "(" * 5000 + item + ")" * 5000)
            for kind, start, item in (("gbnf", "root ::= ", '"a"'), ("lark", "start: ", '"a"'), ("regex", "", "a"))
        ),
        *(Grammar(kind="schema", source=schema) for schema in HOSTILE.values()),
    ],
)
def test_a_grammar_that_cannot_be_used_is_refused_with_the_reason(grammar: Grammar) -> None:
    machine = engine()
    with pytest.raises(EngineError) as refused:
        machine.add(spec(0, prompt(5), grammar=grammar))
    assert refused.value.kind == "invalid"
    assert refused.value.message.startswith("the format cannot be used: ")
    assert 30 < len(refused.value.message) < 400
    assert "recursion" not in refused.value.message and "<state>" not in refused.value.message
    assert not machine.has_work


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar(kind="lark", source='start: "a" start'),
        Grammar(kind="gbnf", source='root ::= "a"{1000000000}'),
        Grammar(kind="regex", source="(a?){5000}a{5000}"),
    ],
    ids=["endless", "a billion letters", "too many states"],
)
def test_a_grammar_that_outgrows_its_limits_ends_its_own_reply_with_the_reason(grammar: Grammar) -> None:
    neighbour = spec(1, prompt(30, 2), new=40)
    replies = run(engine(), [neighbour, spec(0, prompt(12), new=400, grammar=grammar)], every=2)
    failure = replies.ends[0].failure
    assert failure is not None and failure[0] == "invalid"
    assert failure[1].startswith("the format cannot be used: ") and "<" not in failure[1]
    assert replies.tokens[1] == bare("llama", prompt(30, 2), 40)


@pytest.mark.parametrize(
    "schema",
    [
        nested(40, type="string"),
        {"type": "object", "properties": {"a": {"$ref": "#"}, "b": {"type": "integer"}}, "required": ["b"]},
        {"oneOf": [{"type": "integer"}, {"type": "null"}]},
        {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "maxItems": 4},
        {"type": "object", "properties": {f"k{at}": {"type": "null"} for at in range(400)}},
        doubling(30),
    ],
    ids=["deep", "recursive", "one of", "a keyword nobody enforces", "wide", "exponential where it is written out"],
)
def test_what_people_write_is_taken(schema: dict[str, Any]) -> None:
    machine = engine()
    machine.add(spec(0, prompt(5), grammar=Grammar(kind="schema", source=schema)))
    assert machine.has_work


ENDLESS = Grammar(
    kind="schema",
    source={"type": "string", "allOf": [{"pattern": f"^(a|b)*a(a|b){{{at}}}"} for at in range(5, 100, 3)]},
)
"""A kilobyte that takes the compiler minutes and gigabytes; it joins the patterns before it counts what they cost."""


def test_a_compilation_that_takes_too_long_is_ended_and_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is left that would take time or memory."""
    machine = engine()
    monkeypatch.setattr("omlx.engine.grammar_process.MAX_SECONDS", 0.5)
    with ThreadPoolExecutor() as threads:
        endless = threads.submit(machine.compile, ENDLESS)
        machine.compile(Grammar(kind="schema", source=PERSON))
        with pytest.raises(EngineError, match="takes longer than"):
            endless.result()
    assert len(helpers()) <= 4, "more than are kept for other work"
    assert all(helper.cpu_percent(0.2) < 20 for helper in helpers())


def test_a_compilation_that_takes_too_much_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omlx.engine.grammar_process._pool", DecoderPool("omlx.engine.grammar_process", 1 << 20))
    with pytest.raises(EngineError, match="takes too much memory"):
        engine().compile(ENDLESS)


def test_a_compilation_that_nobody_waits_for_ends() -> None:
    class Gone(Exception):
        pass

    def check() -> None:
        raise Gone

    with pytest.raises(Gone):
        engine().compile(ENDLESS, check)


def test_a_grammar_is_kept_until_many_others_have_come() -> None:
    machine = engine()
    first, *others = (Grammar(kind="regex", source=f"{at}[a-z]") for at in range(9))
    assert not machine.is_compiled(first)
    machine.compile(first)
    assert machine.is_compiled(first)
    for other in others:
        machine.compile(other)
    assert not machine.is_compiled(first) and machine.is_compiled(others[0])


def test_a_grammar_longer_than_any_is_refused() -> None:
    with pytest.raises(EngineError, match="longer than 4,000,000 characters"):
        engine().compile(Grammar(kind="schema", source={"const": "y" * 4_000_000}))


def helpers() -> set[psutil.Process]:
    """The processes that check grammars."""
    return {child for child in psutil.Process().children() if "omlx.engine.grammar_process" in command_line(child)}


@pytest.mark.parametrize("large", [True, False])
def test_the_index_of_a_large_vocabulary_is_made_at_the_load(monkeypatch: pytest.MonkeyPatch, large: bool) -> None:
    """Made for the first request, it would hold up all others for seconds."""
    made = []
    real = llguidance.LLTokenizer
    monkeypatch.setattr(grammar, "LARGE_VOCABULARY", 100 if large else 10_000)
    monkeypatch.setattr(llguidance, "LLTokenizer", lambda *args, **other: made.append(1) or real(*args, **other))
    machine = engine("llama")
    assert len(made) == large
    reply = run(machine, [spec(0, prompt(9), grammar=Grammar(kind="regex", source="[a-c]{4}"))])
    assert re.fullmatch("[a-c]{4}", reply.text[0])
    assert len(made) == 1
