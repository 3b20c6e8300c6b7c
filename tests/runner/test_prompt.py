"""A prompt fits its context with as few messages dropped as possible, and has at most one begin-of-text token."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from omlx.messages.request import GenerateRequest, Limits, Message, ToolCall
from omlx.prompting.template import PromptTemplate
from omlx.runner.prompt import TOO_LONG, Prompt, Prompter, PromptError, PromptTokenizer, first_fitting


class Words:
    """A tokenizer of words whose ids are their lengths; it puts token 1 in front, as Llama's does."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [1] * add_special_tokens + [10 + len(word) for word in text.replace("<s>", "").split()]

    def get_vocab(self) -> dict[str, int]:
        return {"x" * 8: 0}


def prompter() -> Prompter:
    return Prompter(PromptTemplate.plain(), PromptTokenizer(Words()))


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


class RustWords:
    """A tokenizer of words by the real library; it puts a begin token in front."""

    def __init__(self, words: list[str]) -> None:
        vocabulary = {word: at for at, word in enumerate(["<s>", "<unk>", *words])}
        self.backend_tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
        self.backend_tokenizer.pre_tokenizer = Whitespace()
        self.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def get_vocab(self) -> dict[str, int]:
        return dict(self.backend_tokenizer.get_vocab())


WORDS = [f"w{at:03}" for at in range(500)]


def word_prompter(template: PromptTemplate | None = None) -> Prompter:
    return Prompter(template or PromptTemplate.plain(), PromptTokenizer(RustWords(WORDS)))


def numbered(*names: str) -> GenerateRequest:
    """Messages of these names: s(ystem), u(ser), a(nswer), c(all), t(ool result), and a number; ten words each."""
    roles = {"s": "system", "u": "user", "a": "assistant", "c": "assistant", "t": "tool"}
    messages = [
        Message(
            roles[name[0]],
            " ".join([name] * 10),
            tool_calls=[ToolCall("f", {}, f"id{name[1:]}")] if name[0] == "c" else [],
            tool_call_id=f"id{name[1:]}" if name[0] == "t" else "",
        )
        for name in names
    ]
    return GenerateRequest(id=1, messages=messages)


LISTED = PromptTemplate.from_jinja(
    "{% for m in messages %}[ {{ m.content }} {% for c in m.tool_calls or [] %}"
    "{{ c.id }}={{ c.function.arguments | tojson }}{% endfor %} {{ m.tool_call_id }} ] {% endfor %}"
)


@pytest.mark.parametrize(
    ("names", "room", "left"),
    [
        ("s1 u1 c1 t1 c2 t2 c3 t3", 110, "s1 u1 c1 t1 c2 t2 c3 t3"),
        ("s1 u1 c1 t1 c2 t2 c3 t3", 90, "s1 u1 c2 t2 c3 t3"),
        ("s1 u1 c1 t1 c2 t2 c3 t3", 70, "s1 u1 c3 t3"),
        ("s1 u1 c1 t1 t1 c2 t2 t2", 70, "s1 u1 c2 t2 t2"),
        ("u1 a1 u2 a2 u3 c3 t3", 78, "a1 u2 a2 u3 c3 t3"),
        ("u1 a1 u2 c2 t2 a2 u3", 60, "c2 t2 a2 u3"),
        ("u1 a1 u2 c2 t2 a2 u3", 48, "a2 u3"),
        ("s1 u1 c1 t1 s2 c2 t2", 78, "s1 u1 s2 c2 t2"),
    ],
)
def test_the_question_stays_in_a_long_tool_loop_and_calls_go_with_their_results(
    names: str, room: int, left: str
) -> None:
    prompt = Prompter(LISTED, PromptTokenizer(Words())).build(numbered(*names.split()), room + 1)
    assert len(prompt.tokens) <= room
    shown = [word for word in names.split() if word in prompt.text.split()]
    assert shown == list(left.split()), prompt.text


def test_a_message_too_long_by_itself_keeps_its_beginning_and_its_end() -> None:
    whole = GenerateRequest(id=1, messages=[Message("user", " ".join(WORDS))])
    prompt = word_prompter().build(whole, 100)
    assert len(prompt.tokens) == 99, "the begin token, four of the beginning, the rest of the end"
    assert prompt.text.split() == [*WORDS[:4], *WORDS[-94:]]
    assert prompt.tokens == [0, *range(2, 6), *range(502 - 94, 502)]
    more = word_prompter().build(msgspec.structs.replace(whole, limits=Limits(num_keep=20)), 100)
    assert more.text.split() == [*WORDS[:20], *WORDS[-78:]]
    with pytest.raises(PromptError) as failure:
        word_prompter().build(msgspec.structs.replace(whole, limits=Limits(truncate=False)), 100)
    assert (failure.value.kind, failure.value.message) == ("too_long", TOO_LONG)


def test_beside_other_messages_the_longest_is_cut_and_they_stay_whole() -> None:
    call = Message("assistant", tool_calls=[ToolCall("f", {}, "a")])
    asked = [Message("system", "be brief"), Message("user", "sum up"), call, Message("tool", " ".join(WORDS))]
    prompt = word_prompter(LISTED).build(GenerateRequest(id=1, messages=asked), 100)
    assert len(prompt.tokens) == 99
    before, _, cut = prompt.text.rpartition("[")
    assert " ".join(before.split()) == "[ be brief ] [ sum up ] [ a={} ]"
    assert cut.split() == [*WORDS[:4], *WORDS[-80:], "a", "]"]


def test_a_system_message_that_fills_the_context_is_cut_with_the_rest() -> None:
    asked = [Message("system", " ".join(WORDS)), Message("user", "sum up")]
    prompt = word_prompter().build(GenerateRequest(id=1, messages=asked), 100)
    assert prompt.text.split() == [*WORDS[:4], *WORDS[-92:], "sum", "up"]


@pytest.mark.parametrize(("context", "left"), [(100, 99), (5, 4), (3, 2), (2, 1)])
def test_a_raw_prompt_is_cut_too(context: int, left: int) -> None:
    prompt = word_prompter().build(GenerateRequest(id=1, raw_prompt=" ".join(WORDS)), context)
    assert len(prompt.tokens) == left
    assert prompt.tokens[-1] == 501


def test_without_truncation_a_long_prompt_is_refused() -> None:
    with pytest.raises(PromptError):
        prompter().build(request(3, 4, 5, limits=Limits(truncate=False)), 12)


def test_an_earlier_exchange_comes_first_and_its_oldest_tokens_give_way() -> None:
    assert prompter().build(request(2, context=[7, 8, 9]), 10).tokens == [7, 8, 9, 14, 14]
    assert prompter().build(request(2, context=[7, 8, 9]), 5).tokens == [8, 9, 14, 14]
    assert prompter().build(request(2, context=[7, 8, 9]), 4).tokens == [9, 14, 14]


def test_a_raw_prompt_begins_with_one_begin_token() -> None:
    assert prompter().build(GenerateRequest(id=1, raw_prompt="a bb"), 10).tokens == [1, 11, 12]


def test_megabytes_are_refused_or_cut_without_being_tokenized() -> None:
    class Slow(Words):
        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            assert len(text) < 100_000, "tokenized"
            return super().encode(text, add_special_tokens)

    asked = GenerateRequest(id=1, raw_prompt="x " * 10**7)
    slow = Prompter(PromptTemplate.plain(), PromptTokenizer(Slow()))
    with pytest.raises(PromptError):
        slow.build(msgspec.structs.replace(asked, limits=Limits(truncate=False)), 4096)
    assert len(slow.build(asked, 4096).tokens) == 4095


def test_a_template_that_refuses_the_request_says_so() -> None:
    refusing = PromptTemplate.from_jinja("{{ raise_exception('only one user message, please') }}")
    with pytest.raises(PromptError) as failure:
        Prompter(refusing, PromptTokenizer(Words())).build(request(1), 100)
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
