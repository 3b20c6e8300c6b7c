"""Texts that no context can hold are cut before they are sent, and their prompts are those of the whole texts."""

from __future__ import annotations

import msgspec
import pytest

from omlx.messages.frames import Generate, encode
from omlx.messages.request import GenerateRequest, Limits, Message
from omlx.prompting.template import PromptTemplate
from omlx.runner.clip import clip, clip_request
from omlx.runner.prompt import TOO_LONG, Prompter, PromptError, PromptTokenizer
from tests.runner.test_prompt import WORDS, RustWords

CONTEXT = 100
MOST = CONTEXT * 5
"""Characters: a word and the space behind it are five."""
TEXT = " ".join(WORDS * 400)


@pytest.mark.parametrize(
    ("text", "most", "clipped"),
    [
        ("", 2, ""),
        ("abcdef", 2, "abcdef"),
        ("abcdefg", 2, "abcefg"),
        ("abcdefghijk", 2, "abcijk"),
        ("abcdefghijk", 0, "abcdefghijk"),
    ],
)
def test_only_the_middle_goes_and_the_rest_is_still_too_long(text: str, most: int, clipped: str) -> None:
    assert clip(text, most) == clipped


@pytest.mark.parametrize("keep", [0, 4, 50, 98])
@pytest.mark.parametrize(
    "asked",
    [
        GenerateRequest(id=1, raw_prompt=TEXT),
        GenerateRequest(id=1, messages=[Message("user", TEXT)]),
        GenerateRequest(id=1, messages=[Message("system", "w001"), Message("user", TEXT)]),
        GenerateRequest(id=1, messages=[Message("system", TEXT), Message("user", "w001")]),
        GenerateRequest(id=1, messages=[Message("user", TEXT), Message("assistant", TEXT), Message("user", "w001")]),
    ],
)
def test_the_prompt_is_the_same_and_the_frame_is_small(asked: GenerateRequest, keep: int) -> None:
    prompter = Prompter(PromptTemplate.plain(), PromptTokenizer(RustWords(WORDS)))
    whole = msgspec.structs.replace(asked, limits=Limits(num_keep=keep))
    short = clip_request(whole, MOST)
    assert len(encode(Generate(whole))) > len(TEXT)
    assert len(encode(Generate(short))) < 6 * MOST
    assert prompter.build(short, CONTEXT).tokens == prompter.build(whole, CONTEXT).tokens
    refusing = msgspec.structs.replace(short, limits=Limits(truncate=False))
    with pytest.raises(PromptError) as failure:
        prompter.build(refusing, CONTEXT)
    assert failure.value.message == TOO_LONG


def test_a_request_without_long_texts_stays_as_it_is() -> None:
    asked = GenerateRequest(id=1, messages=[Message("user", "x" * 2 * MOST)])
    assert clip_request(asked, MOST) is asked
    assert clip_request(asked, 0) is asked
