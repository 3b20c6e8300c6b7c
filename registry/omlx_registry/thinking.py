"""*Thinking* is the reasoning a model writes ahead of its answer, between two markers that its family chose.

The one table of these markers: the capability that `show` reports, the prompt and the parser of the output all come
from it, so that no model is said to think whose thinking cannot be told from its answer, nor the other way round. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final, NamedTuple


class ThinkMarkers(NamedTuple):
    """What opens and closes a thinking block, and wrappers around the answer that are no part of its text."""

    opening: str
    closing: str
    wrappers: tuple[str, ...] = ()


KNOWN: Final = (
    # Apriel's templates speak of other tags too: it comes first.
    ThinkMarkers("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]", ("[END FINAL RESPONSE]",)),
    ThinkMarkers("<think>", "</think>"),
    ThinkMarkers("<mm:think>", "</mm:think>"),
    ThinkMarkers("<thinking>", "</thinking>"),
    ThinkMarkers("<thought>", "</thought>"),
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
    ThinkMarkers("Here is my thought process:", "Here is my response:"),
)
"""By family: Apriel; Qwen, DeepSeek, GLM and most others; MiniMax M3; some tunes; EXAONE Deep; Magistral, Seed,
LongCat, Kimi-VL, Cohere, Gemma 4, Apertus, Kimi K3, Solar, Granite 3.2."""

_PARTS: Final = {
    "Here are my reasoning steps:": ("[BEGIN FINAL RESPONSE]",),
    "<|channel>thought\n": ("<|channel>", "<channel|>"),
    "<|open|>think<|sep|>": ("<|open|>", "<|end_of_msg|>"),
    "<|think|>": ("<|think|>", "<|begin|>"),
}
"""By opening: what tells these markers in a template or a vocabulary, where the two texts themselves would not do."""

_TOLD_IN_WORDS: Final = (("Enable deep thinking subroutine", ThinkMarkers("<think>", "</think>")),)
"""Families whose template asks for thinking in a sentence and leaves the markers to the model: Cogito."""

SWITCHES: Final = (
    "enable_thinking",
    "thinking",
    "reasoning",
    "reasoning_effort",
    "reasoning_strength",
    "thinking_mode",
    "thinking_budget",
)
"""Variables by which templates switch thinking on and off."""

_SUFFIXED: Final = re.compile(r"</?think:(\w{1,32})>")
"""Hunyuan 3's and 4's markers, whose suffix changes with the release."""
_FORMATTED: Final = re.compile(r"""<think\{\}>['"]\s*\.format\((\w{1,32})\)""")
"""Or the template puts it in from a variable."""

_BY_RECIPIENT: Final = ("<atem:function_calls>", "<|eom|>")
"""Muse Glimmer thinks in messages to itself: no two texts enclose it."""

_OFF_UNLESS_ASKED: Final = (
    "Here is my thought process:",
    "between <think></think> and write your response between <response></response>",
    "Enable deep thinking subroutine",
)
"""Texts of templates whose models think only where they are told to: Granite 3.2 and 3.3, Cogito."""

_GO_THINKING: Final = re.compile(r"\{\{-?\s*\$?[\w.]*\.Thinking\s*-?\}\}")
_NEXT_WORD: Final = re.compile(r"\s*([^\s{}]+)")
_LONGEST_TAG: Final = 256
"""Characters in front of an action that are looked at: a template may come from anybody and be megabytes long."""


def find_markers(source: str, tokens: Collection[str]) -> ThinkMarkers | None:
    """The markers a model thinks between: from the text of its template, else from its vocabulary; None: it does not.

    A Go template names them itself: they are the literal texts around `.Thinking`.
    """
    around = markers_around_thinking(source)
    if around is not None:
        return around
    return markers_in(source) or _markers_among(tokens)


def markers_in(source: str) -> ThinkMarkers | None:
    """The markers that the text of a template speaks of."""
    markers = next((markers for text, markers in _TOLD_IN_WORDS if text in source), None)
    markers = markers or _suffixed(_SUFFIXED.search(source)) or _formatted(source) or _whole_markers(source)
    if markers is not None:
        return markers
    # Some templates only cut earlier thinking off (`split('</think>')`) and leave the opening tag to the model.
    return next((known for known in KNOWN if known.opening not in _PARTS and known.closing in source), None)


def thinks(template: str, tokens: Collection[str] = ()) -> bool:
    """Whether the model of a Jinja template can be asked to think.

    A vocabulary may have the markers of a model that never thinks: it counts only where the template has a switch.
    """
    if markers_in(template) is not None or all(text in template for text in _BY_RECIPIENT):
        return True
    return any(reads(template, name) for name in SWITCHES) and _markers_among(tokens) is not None


def thinks_by_default(template: str) -> bool:
    """Whether a model that can think does so unless it is told not to."""
    if "<|START_THINKING|>" in template:
        # Command R7B and A plan ahead of tool calls only; the reasoning models of the family have a switch.
        return reads(template, "reasoning")
    return not any(text in template for text in _OFF_UNLESS_ASKED)


def reads(template: str, name: str) -> bool:
    """Whether a Jinja template uses a variable of this name (and not only an attribute or a text that contains it)."""
    return re.search(rf"(?<![\w.]){re.escape(name)}(?!\w|\s*=[^=])", _code(template)) is not None


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


def _whole_markers(place: Collection[str]) -> ThinkMarkers | None:
    """The first markers all of which are in `place`: a text, or the tokens of a vocabulary."""
    return next((known for known in KNOWN if all(part in place for part in _PARTS.get(known.opening, known[:2]))), None)


def _markers_among(tokens: Collection[str]) -> ThinkMarkers | None:
    return next(filter(None, map(_suffixed, map(_SUFFIXED.fullmatch, tokens))), None) or _whole_markers(tokens)


def _suffixed(match: re.Match[str] | None) -> ThinkMarkers | None:
    return None if match is None else ThinkMarkers(f"<think:{match[1]}>", f"</think:{match[1]}>")


def _formatted(source: str) -> ThinkMarkers | None:
    name = _FORMATTED.search(source)
    suffix = name and re.search(rf"""\b{name[1]}\s*=\s*['"](:?\w{{0,32}})['"]""", source)
    return ThinkMarkers(f"<think{suffix[1]}>", f"</think{suffix[1]}>") if suffix else None


def opens_suffixed(text: str) -> bool:
    """Whether the text ends with an opening marker that has a suffix."""
    match = _SUFFIXED.match(text, max(text.rfind("<think:"), 0))
    return match is not None and match.end() == len(text)


def is_marker_token(token: str) -> bool:
    """Whether a token of a vocabulary belongs to any of the markers."""
    return token in _MARKER_TOKENS or _SUFFIXED.fullmatch(token) is not None


_MARKER_TOKENS: Final = frozenset(text for known in KNOWN for text in (*known[:2], *_PARTS.get(known.opening, ())))

_TAG: Final = re.compile(r"\{[{%]")
_TAG_END: Final = re.compile(r"[%}]\}")
# A literal without an end reaches to the end, so that no character is looked at twice.
_QUOTED: Final = re.compile(r"""'(?:[^'\\]|\\.)*+(?:'|\\?\Z)|"(?:[^"\\]|\\.)*+(?:"|\\?\Z)""", re.DOTALL)


def _code(template: str) -> str:
    """What stands inside the tags of a Jinja template, without its literal texts. In time linear in its length."""
    inside = (_TAG_END.split(part, maxsplit=1)[0] for part in _TAG.split(template)[1:])
    return " ".join(_QUOTED.sub("''", part) for part in inside)
