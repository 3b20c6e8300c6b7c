"""*Thinking* is the reasoning a model writes ahead of its answer, between two markers that its family chose.

The markers are found in the model's template or vocabulary; the parser (`output.py`) and the prompt (`prompt.py`, which
must know whether a prompt already ends inside a thinking block) both take them from here.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple


class ThinkMarkers(NamedTuple):
    """What opens and closes a thinking block, and wrappers around the answer that are no part of its text."""

    opening: str
    closing: str
    wrappers: tuple[str, ...] = ()


KNOWN = (
    # Apriel's templates speak of other tags too: it comes first.
    ThinkMarkers("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]", ("[END FINAL RESPONSE]",)),
    ThinkMarkers("<think>", "</think>"),
    ThinkMarkers("<mm:think>", "</mm:think>"),
    ThinkMarkers("<think:opensource>", "</think:opensource>"),
    ThinkMarkers("<thinking>", "</thinking>"),
    ThinkMarkers("[THINK]", "[/THINK]"),
    ThinkMarkers("<seed:think>", "</seed:think>"),
    ThinkMarkers("<longcat_think>", "</longcat_think>"),
    ThinkMarkers("<|think:start|>", "<|think:end|>"),
    ThinkMarkers("◁think▷", "◁/think▷"),
    ThinkMarkers("<|begin_of_thought|>", "<|end_of_thought|>", ("<|begin_of_solution|>", "<|end_of_solution|>")),
    ThinkMarkers(
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    ),
    ThinkMarkers("<|channel>thought\n", "<channel|>"),
    ThinkMarkers("<|inner_prefix|>", "<|inner_suffix|>"),
    ThinkMarkers(
        "<|open|>think<|sep|>",
        "<|close|>think<|sep|>",
        ("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
    ),
    ThinkMarkers("<|think|>", "<|end|>", ("<|begin|>assistant", "<|content|>", "<|end|>")),
)
"""By family: Apriel; Qwen, DeepSeek, GLM and most others; MiniMax M3; Hunyuan 3; Magistral, Seed, LongCat, Kimi-VL,
Cohere, Gemma 4, Apertus, Kimi K3, Solar."""

# Their markers are made of several tokens: those that tell them apart, in a template or a vocabulary.
_PARTS = {
    "<|channel>thought\n": ("<|channel>", "<channel|>"),
    "<|open|>think<|sep|>": ("<|open|>", "<|end_of_msg|>"),
    "<|think|>": ("<|think|>", "<|begin|>"),
}


def find_markers(source: str, tokens: Collection[str]) -> ThinkMarkers | None:
    """The markers a model thinks between: from the text of its template, else from its vocabulary; None: it does not.

    A Go template names them itself: they are the literal texts around `.Thinking`.
    """
    around = markers_around_thinking(source)
    if around is not None:
        return around
    for place in (source, tokens):
        for markers in KNOWN:
            if all(part in place for part in _PARTS.get(markers.opening, markers[:2])):
                return markers
    # Some templates only cut earlier thinking off (`split('</think>')`) and leave the opening tag to the model.
    return next((markers for markers in KNOWN if markers.closing in source), None)


_GO_THINKING = re.compile(r"\{\{-?\s*\$?[\w.]*\.Thinking\s*-?\}\}")
_NEXT_WORD = re.compile(r"\s*([^\s{}]+)")
_LONGEST_TAG = 256
"""Characters in front of an action that are looked at: a template may come from anybody and be megabytes long."""


def markers_around_thinking(go_source: str) -> ThinkMarkers | None:
    """The texts right before and behind `{{ .Thinking }}` in a Go template, where they look like a pair of tags."""
    for action in _GO_THINKING.finditer(go_source):
        behind = _NEXT_WORD.match(go_source, action.end())
        before = go_source[max(0, action.start() - _LONGEST_TAG) : action.start()].split()
        if behind is None or not before:
            continue
        opening, closing = before[-1].rsplit("}}", 1)[-1], behind[1]
        if opening and "{{" not in opening:
            known = next((markers for markers in KNOWN if markers.opening == opening), None)
            return known or ThinkMarkers(opening, closing)
    return None


def ends_inside_thinking(prompt: str) -> bool:
    """Whether the prompt's last words open a thinking block, so that the model's output starts within it."""
    end = prompt.rstrip()
    _, analysis, begun = end.rpartition("<|channel|>analysis<|message|>")
    if analysis and "<|" not in begun:
        # gpt-oss: earlier thinking that the model is to go on with.
        return True
    return any(end.endswith(markers.opening.rstrip()) for markers in KNOWN)
