"""Thinking is told apart from the answer, wherever the text is cut into chunks."""

from __future__ import annotations

import pytest

from omlx.prompting.output import PLAIN, OutputDialect, OutputParser, detect_output
from omlx.prompting.thinking import ThinkMarkers, ends_inside_thinking, find_markers

THINKER = OutputDialect(think=ThinkMarkers("<think>", "</think>"))

CASES = [
    ("<think>a b</think>c", False, "a b", "c"),
    (" \n<think>\n a \n</think>\n\n c", False, "a \n", "c"),
    ("a</think>\nc", True, "a", "c"),
    ("\n\n</think>\n\nc", True, "", "c"),
    ("plain answer", False, "", "plain answer"),
    ("  indented answer ", False, "", "  indented answer "),
    ("text first <think>no</think>", False, "", "text first <think>no</think>"),
    ("<think>never closed </thin", False, "never closed </thin", ""),
    ("<thi", False, "", "<thi"),
    ("<thinner", False, "", "<thinner"),
    ("<think>a</think>b</think>", False, "a", "b</think>"),
    ("<think>a\n</think>\n\n</think>\n\nb", False, "a\n", "b"),
    ("a</think></think> \n</think>b </think>", True, "a", "b </think>"),
    ("a</think></thi", True, "a", "</thi"),
    ("a</think></b>", True, "a", "</b>"),
    ("a</think></think>", True, "a", ""),
    ("", False, "", ""),
]


def split(text: str, size: int, *, opens: bool = False, thinking: bool = True) -> tuple[str, str]:
    parser = OutputParser(THINKER, opens_thinking=opens, thinking=thinking)
    chunks = [text[at : at + size] for at in range(0, len(text), size)]
    segments = [segment for chunk in chunks for segment in parser.feed(chunk)] + parser.finish()
    return (
        "".join(segment.text for segment in segments if segment.kind == "thinking"),
        "".join(segment.text for segment in segments if segment.kind == "content"),
    )


@pytest.mark.parametrize(("text", "opens", "thinking", "content"), CASES)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_thinking_and_content_are_split(text: str, opens: bool, thinking: str, content: str, size: int) -> None:
    assert split(text, size, opens=opens) == (thinking, content)


def test_text_is_passed_on_as_soon_as_it_is_certain() -> None:
    parser = OutputParser(THINKER)
    assert parser.feed("Hello <") == [("content", "Hello ", None)]
    assert parser.feed("b") == [("content", "<b", None)]
    thinking = OutputParser(THINKER, opens_thinking=True)
    assert [segment.text for segment in thinking.feed("so </")] == ["so "]
    assert [segment.text for segment in thinking.feed("so")] == ["</so"]


def test_unwanted_thinking_is_kept_out_of_the_content() -> None:
    assert split("<think>a</think>b", 1, thinking=False) == ("", "b")


def test_without_markers_all_is_content() -> None:
    assert OutputParser(PLAIN).feed("<think>x</think>") == [("content", "<think>x</think>", None)]


@pytest.mark.parametrize(
    ("source", "tokens", "opening"),
    [
        ("{{ '<think>' }}{{ '</think>' }}", [], "<think>"),
        ("{{ content.split('</think>')[-1] }}", [], "<think>"),
        ("", ["<think>", "</think>"], "<think>"),
        ("[THINK]{{ x }}[/THINK]", [], "[THINK]"),
        ("{{- if .Thinking }}<reason>{{ .Thinking }}</reason>{{ end }}", [], "<reason>"),
        ("{{ if $m.Thinking }}<think>\n{{ $m.Thinking }}\n</think>{{ end }}", [], "<think>"),
        ("", ["<|channel>", "<channel|>"], "<|channel>thought\n"),
        ("<|START_THINKING|>x<|END_THINKING|>", [], "<|START_THINKING|>"),
        ("Here are my reasoning steps: [BEGIN FINAL RESPONSE] <think> </think>", [], "Here are my reasoning steps:"),
        ("", ["<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"], "<|open|>think<|sep|>"),
        ("<|begin|>assistant<|think|>", [], "<|think|>"),
        ("", ["<think:opensource>", "</think:opensource>"], "<think:opensource>"),
        ("{{ messages }}", ["<|im_start|>"], None),
    ],
)
def test_markers_are_found_in_template_and_vocabulary(source: str, tokens: list[str], opening: str | None) -> None:
    markers = find_markers(source, tokens)
    assert (markers and markers.opening) == opening
    assert detect_output(source, tokens, "llama").think == markers


@pytest.mark.parametrize(
    ("source", "tokens", "opens", "thinking", "before"),
    [
        ("<think></think>", [], False, True, ("<think>", "</think>")),
        ("<think></think>", [], False, False, ("", "")),
        ("<think></think>", [], True, False, ("", "</think>")),
        ("no thinking here", ["<think>", "</think>"], False, True, ("", "")),
        ("", [], False, True, ("", "")),
        ("<|channel|><|message|>", [], False, False, ("", "<|channel|>final<|message|>")),
    ],
)
def test_a_constraint_begins_where_the_answer_begins(
    source: str, tokens: list[str], opens: bool, thinking: bool, before: tuple[str, str]
) -> None:
    dialect = detect_output(source, tokens, "")
    assert dialect.before_answer(opens_thinking=opens, thinking=thinking) == before


def test_gpt_oss_goes_on_with_thinking_it_was_given() -> None:
    assert ends_inside_thinking("<|start|>assistant<|channel|>analysis<|message|>I was")
    assert not ends_inside_thinking("<|channel|>analysis<|message|>I was<|end|><|start|>assistant")
    parser = OutputParser(OutputDialect(channels=True), opens_thinking=True)
    segments = parser.feed(" here.<|end|><|start|>assistant<|channel|>final<|message|>Hello") + parser.finish()
    assert [(segment.kind, segment.text) for segment in segments] == [("thinking", " here."), ("content", "Hello")]
