"""Thinking has a budget: when it is used up the thinking is closed and the answer follows, whatever else is asked."""

from __future__ import annotations

import msgspec
import pytest

from omlx.engine.guide import make_guide
from omlx.engine.sequence import SequenceSpec
from omlx.messages.constraint import Grammar, ThinkLimit
from tests.engine.support import engine, loaded, prompt, run, spec
from tests.support.lessons import lesson

BUDGET = ThinkLimit(budget=3, opening="<think>", closing="</think>", ending="\n</think>")


def asked() -> list[int]:
    """Prompt tokens of a lesson with thinking."""
    item, tokenizer = lesson("sum"), loaded("qwen3", taught=True).tokenizer
    text = tokenizer.apply_chat_template(
        item.messages, add_generation_prompt=True, tokenize=False, enable_thinking=True
    )
    return [int(token) for token in tokenizer.encode(text, add_special_tokens=False)]


def limited(thinking: ThinkLimit, **other: object) -> SequenceSpec:
    return spec(0, asked(), new=60, thinking=thinking, **other)


def thought(text: str) -> tuple[str, str]:
    """Thinking and answer of a reply of the taught model."""
    assert text.startswith("<think>")
    inside, closing, answer = text.removeprefix("<think>").partition("</think>")
    assert closing
    return inside, answer


@pytest.mark.parametrize("budget", [0, 1, 2, 3, 7])
def test_thinking_ends_where_its_budget_does(budget: int) -> None:
    machine = engine("qwen3", taught=True)
    free = run(machine, [spec(0, asked(), new=60)]).tokens[0]
    reply = run(machine, [limited(msgspec.structs.replace(BUDGET, budget=budget))])
    opening, ending = (
        loaded("qwen3", taught=True).text_tokenizer.encode(text).ids for text in ("<think>", "\n</think>")
    )
    assert reply.tokens[0][: 1 + budget] == free[: 1 + budget]
    assert reply.tokens[0][1 + budget :][: len(ending)] == ending
    assert opening == free[:1] and reply.ends[0].finish is not None


def test_a_large_budget_changes_nothing() -> None:
    machine = engine("qwen3", taught=True)
    free = run(machine, [spec(0, asked(), new=60)])
    assert run(machine, [limited(msgspec.structs.replace(BUDGET, budget=1000))]).tokens == free.tokens


def test_rows_of_a_batch_think_as_long_as_they_may_each() -> None:
    machine = engine("qwen3", taught=True)
    alone = run(machine, [limited(BUDGET)]).tokens[0]
    specs = [limited(BUDGET), *(msgspec.structs.replace(spec(0, prompt(12, at), new=24), id=at) for at in (1, 2))]
    unlimited = msgspec.structs.replace(limited(BUDGET), id=3, thinking=None)
    replies = run(machine, [*specs, unlimited], every=2)
    assert replies.tokens[0] == alone
    assert replies.tokens[1] == run(machine, [spec(0, prompt(12, 1), new=24)]).tokens[0]
    assert replies.tokens[3] == run(machine, [spec(0, asked(), new=60)]).tokens[0]


def test_the_grammar_begins_behind_thinking_that_was_closed() -> None:
    grammar = Grammar(kind="regex", source="[0-9]{3}", opening="<think>", after="</think>")
    reply = run(engine("qwen3", taught=True), [limited(BUDGET, grammar=grammar)])
    inside, answer = thought(reply.text[0])
    assert answer.isdigit() and len(answer) == 3
    assert inside.endswith("\n")
    assert reply.ends[0].finish == "stop"


def test_thinking_that_the_prompt_opens_counts_from_the_first_token() -> None:
    tokenizer = loaded("qwen3", taught=True).text_tokenizer
    opened = [*asked(), *tokenizer.encode("<think>\n").ids]
    thinking = msgspec.structs.replace(BUDGET, open=True, budget=2)
    reply = run(engine("qwen3", taught=True), [spec(0, opened, new=60, thinking=thinking)])
    ending = tokenizer.encode("\n</think>").ids
    assert reply.tokens[0][2 : 2 + len(ending)] == ending


def test_a_reply_that_owes_an_answer_does_not_end_within_its_thinking() -> None:
    model = loaded("qwen3", taught=True)
    machine = engine("qwen3", taught=True)
    ends = [token for token in sorted(model.end_tokens) if token < model.vocabulary]
    grammar = Grammar(kind="regex", source="[0-9]{3}", after="</think>")
    sampling = msgspec.structs.replace(limited(BUDGET).sampling, logit_bias=dict.fromkeys(ends, 100.0))
    thinking = msgspec.structs.replace(BUDGET, open=True)
    wanted = msgspec.structs.replace(limited(thinking, grammar=grammar), sampling=sampling)
    assert run(machine, [wanted]).text[0].partition("</think>")[2].isdigit()


def test_thinking_of_several_messages_shares_the_budget() -> None:
    """gpt-oss thinks in messages of their own, between which it may do other things."""
    model = loaded("qwen3", taught=True)
    thinking = ThinkLimit(budget=4, opening="<A>", closing="<E>", ending="<E>final", anywhere=True)
    guide = make_guide(engine("qwen3", taught=True)._grammars, model.text_tokenizer, set(), None, thinking)
    assert guide is not None
    for text in ("<", "A>", "one", "two", "<E>", "call", "<A>"):
        guide.accept(0, text)
        assert not guide.active
    guide.accept(0, "three")
    assert guide.active, "three words and a closing mark: the fifth token would be one too many"
