"""A prompt fits its context with as few messages dropped as possible, and has at most one begin-of-text token."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx.dialect.prompt import PromptTemplate
from omlx.request import GenerateRequest, Limits, Message
from omlx.runner.prompt import TOO_LONG, Encoder, Prompt, Prompter, PromptError, first_fitting


class Words:
    """A tokenizer of words whose ids are their lengths; it puts token 1 in front, as Llama's does."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [1] * add_special_tokens + [10 + len(word) for word in text.replace("<s>", "").split()]

    def get_vocab(self) -> dict[str, int]:
        return {"x" * 8: 0}


def prompter() -> Prompter:
    return Prompter(PromptTemplate.plain(), Encoder(Words()))


def request(*words_per_message: int, roles: str = "u", **changes: Any) -> GenerateRequest:
    names = {"u": "user", "s": "system", "a": "assistant"}
    messages = [
        Message(names[roles[at % len(roles)]], " ".join(["word"] * count)) for at, count in enumerate(words_per_message)
    ]
    return GenerateRequest(id=1, messages=messages, **changes)


def test_a_prompt_that_fits_is_left_alone() -> None:
    prompt = prompter().build(request(3, 4), 9)
    assert prompt.tokens == [1] + [14] * 7
    assert prompt.text.count("word") == 7


def test_the_oldest_messages_go_first_and_as_few_as_possible() -> None:
    assert len(prompter().build(request(3, 4, 5), 12).tokens) == 10
    assert len(prompter().build(request(3, 4, 5), 10).tokens) == 6


def test_system_messages_and_the_last_one_stay() -> None:
    prompt = prompter().build(request(5, 9, 9, 2, roles="suau"), 10)
    assert len(prompt.tokens) == 8
    with pytest.raises(PromptError) as failure:
        prompter().build(request(5, 9, 9, 6, roles="suau"), 10)
    assert (failure.value.kind, failure.value.message) == ("too_long", TOO_LONG)


def test_without_truncation_a_long_prompt_is_refused() -> None:
    with pytest.raises(PromptError):
        prompter().build(request(3, 4, 5, limits=Limits(truncate=False)), 12)


def test_an_earlier_exchange_comes_first_and_its_oldest_tokens_give_way() -> None:
    assert prompter().build(request(2, context=[7, 8, 9]), 10).tokens == [7, 8, 9, 14, 14]
    assert prompter().build(request(2, context=[7, 8, 9]), 5).tokens == [8, 9, 14, 14]
    assert prompter().build(request(2, context=[7, 8, 9]), 4).tokens == [9, 14, 14]


def test_a_raw_prompt_begins_with_one_begin_token() -> None:
    assert prompter().build(GenerateRequest(id=1, raw_prompt="a bb"), 10).tokens == [1, 11, 12]


def test_megabytes_are_refused_without_being_tokenized() -> None:
    class Slow(Words):
        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            assert len(text) < 1000, "tokenized"
            return super().encode(text, add_special_tokens)

    with pytest.raises(PromptError):
        Prompter(PromptTemplate.plain(), Encoder(Slow())).build(GenerateRequest(id=1, raw_prompt="x" * 10**7), 4096)


def test_a_template_that_refuses_the_request_says_so() -> None:
    refusing = PromptTemplate.from_jinja("{{ raise_exception('only one user message, please') }}")
    with pytest.raises(PromptError) as failure:
        Prompter(refusing, Encoder(Words())).build(request(1), 100)
    assert failure.value.kind == "invalid"
    assert "only one user message" in failure.value.message


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(0, 200))
def test_halving_finds_the_fewest_that_must_go(sizes: list[int], room: int) -> None:
    tried = []

    def build(count: int) -> Prompt | None:
        tried.append(count)
        left = sum(sizes[count:])
        return Prompt([0] * left, "") if left <= room else None

    expected = next((n for n in range(1, len(sizes) + 1) if sum(sizes[n:]) <= room), None)
    found = first_fitting(len(sizes), build)
    assert (None if found is None else len(found.tokens)) == (None if expected is None else sum(sizes[expected:]))
    assert len(tried) <= 6
