"""Where a reply ends: num_predict, num_ctx, shift, truncate, stop strings and end tokens."""

from __future__ import annotations

import pytest

from omlx.engine.sequence import generation_limit, shift
from omlx.messages.request import Limits
from tests.engine.support import bare, engine, loaded, prompt, run, spec
from tests.support.lessons import STORY, lesson


def chat(name: str) -> list[int]:
    """Prompt tokens of a lesson for the taught llama."""
    item, tokenizer = lesson(name), loaded("llama", taught=True).tokenizer
    text = tokenizer.apply_chat_template(
        item.messages, tools=item.tools or None, add_generation_prompt=True, tokenize=False, enable_thinking=False
    )
    return [int(token) for token in tokenizer.encode(text, add_special_tokens=False)]


def test_num_predict_ends_with_length_and_the_end_token_with_stop() -> None:
    replies = run(engine(taught=True), [spec(0, chat("capital"), new=3), spec(1, chat("capital"), new=-1)])
    assert (replies.ends[0].finish, len(replies.tokens[0])) == ("length", 3)
    assert replies.ends[1].finish == "stop"
    assert replies.text[1] == "The capital of France is Paris."
    assert replies.ends[1].stop_string == ""  # its own end token, which has no text


def test_num_predict_zero_reads_the_prompt_and_says_nothing() -> None:
    replies = run(engine(), [spec(0, prompt(20), new=0)])
    assert (replies.ends[0].finish, replies.text[0], replies.tokens[0]) == ("stop", "", [])


@pytest.mark.parametrize(
    ("stop", "found"),
    [
        (["snow fell"], "snow fell"),
        (["never there", "e sta"], "e sta"),
        (["T"], "T"),
        (["The end.", "late"], "late"),
        (["late at", "lat"], "lat"),
        (["never there"], ""),
    ],
)
def test_a_stop_string_ends_the_reply_and_no_part_of_it_is_seen(stop: list[str], found: str) -> None:
    expected = STORY[: STORY.index(found)] if found else STORY
    replies = run(engine(taught=True), [spec(0, chat("story"), limits=Limits(stop=stop))])
    assert replies.text[0] == expected
    assert (replies.ends[0].finish, replies.ends[0].stop_string) == ("stop", found)
    seen = ""
    for output in replies.outputs:
        seen += output.text
        assert expected.startswith(seen), "text once sent is never taken back"


def test_without_shift_a_full_context_ends_the_reply() -> None:
    limits = Limits(num_ctx=50, shift=False)
    replies = run(engine(endless=True), [spec(0, prompt(30), limits=limits)])
    assert (replies.ends[0].finish, len(replies.tokens[0])) == ("length", 20)


def test_num_predict_minus_two_fills_the_context() -> None:
    replies = run(engine(endless=True), [spec(0, prompt(30), limits=Limits(num_ctx=50, num_predict=-2))])
    assert (replies.ends[0].finish, len(replies.tokens[0])) == ("length", 20)


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text", "mamba2"])
def test_with_shift_a_reply_goes_on_from_the_kept_tokens(architecture: str) -> None:
    limits = Limits(num_ctx=64, num_keep=8, num_predict=90)
    specs = [spec(0, prompt(40), limits=limits), spec(1, prompt(25, 1), new=60)]
    replies = run(engine(architecture, endless=True), specs)
    tokens, expected = prompt(40), list[int]()
    while len(expected) < 90:
        more = bare(architecture, tokens, min(64 - len(tokens), 90 - len(expected)))
        expected += more
        tokens = shift(tokens + more, limits, 64)
    assert replies.tokens[0] == expected
    assert replies.tokens[1] == bare(architecture, prompt(25, 1), 60)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (Limits(num_predict=5), 5),
        (Limits(num_predict=500), 500),
        (Limits(num_predict=500, shift=False), 60),
        (Limits(num_predict=-2), 60),
        (Limits(num_predict=-1), 1000),
        (Limits(num_predict=-1, shift=False), 60),
        (Limits(num_predict=0), 0),
    ],
)
def test_generation_limit(limits: Limits, expected: int) -> None:
    assert generation_limit(limits, 100, 40) == expected


def test_shift_drops_the_older_half_behind_the_kept_tokens() -> None:
    assert shift(list(range(20)), Limits(num_keep=4), 20) == [0, 1, 2, 3, *range(12, 20)]


def test_text_is_whole_characters_and_equals_the_decoded_reply() -> None:
    replies = run(engine(taught=True), [spec(0, chat("emoji"), new=-1)])
    assert replies.text[0] == lesson("emoji").content
    assert "\ufffd" not in "".join(output.text for output in replies.outputs)
