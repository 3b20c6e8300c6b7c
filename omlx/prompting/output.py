"""The *output dialect* is how a model marks what it writes: which markers enclose thinking and tool calls.

`detect_output` finds it from the template and vocabulary; an `OutputParser` follows one generation and splits its
text into segments, holding back what may become a marker. Pieces never depend on where the text was cut into chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Protocol

import msgspec

from omlx.prompting import harmony
from omlx.prompting.gochat import tool_tag
from omlx.prompting.recipients import RecipientSplitter
from omlx.prompting.segments import PieceKind, Segment, joined
from omlx.prompting.splitter import TagSplitter
from omlx.prompting.switches import Switches
from omlx.prompting.thinking import ThinkMarkers, find_markers, thinks, thinks_by_default
from omlx.prompting.tools import formats_for, resolve, strays_of
from omlx.prompting.tools.functionary import FUNCTIONARY
from omlx.prompting.tools.offered import OfferedTools, random_call_id

__all__ = ["PLAIN", "OutputDialect", "OutputParser", "PieceKind", "Segment", "detect_output"]


class OutputDialect(msgspec.Struct, frozen=True, kw_only=True):
    """How a model marks its output."""

    think: ThinkMarkers | None = None
    thinks: bool = False
    """The template speaks of thinking. (A vocabulary may have the markers of a model that never thinks.)"""
    answer: tuple[str, str] | None = None
    """Tags that the family puts around the whole answer."""
    recipients: bool = False
    """Muse Glimmer's messages, each to a recipient."""
    thinks_by_default: bool = True
    """It does so unless it is told not to; else only where it is told to."""
    switchable: bool = True
    """The template has a variable that switches thinking off."""
    channels: bool = False
    """gpt-oss's harmony format; nothing else applies then."""
    tools: tuple[str, ...] = ()
    """Names of tool-call formats (see `tools`)."""
    tool_tag: str = ""
    """What a Go template writes in front of calls."""
    plain: bool = False
    """Nothing is marked: all output is content."""
    end_tokens: tuple[str, ...] = ()
    """Tokens of the vocabulary that end a turn, whether or not the model's configuration lists them."""

    def before_answer(self, *, opens_thinking: bool, thinking: bool) -> tuple[str, str]:
        """What may stand in front of the answer, for a constraint on it: (opening, closing) of the free part.

        ("", ""): the answer begins at once. ("", closing): behind `closing`, whatever comes first. Both: the model may
        begin with `opening` and is free until `closing`; if it does not, the answer begins at once.
        `opens_thinking`: the prompt ends inside a thinking block; `thinking`: the request does not switch it off.
        """
        if self.channels:
            return "", harmony.FINAL
        if self.think is not None and opens_thinking:
            return "", self.think.closing
        if self.think is not None and self.thinks and thinking:
            return self.think.opening, self.think.closing
        return "", ""


PLAIN = OutputDialect(plain=True)
"""For raw prompts."""

_END_TOKENS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|eot|>", "<end_of_turn>", "<turn|>", "<|end|>",
               "<|END_OF_TURN_TOKEN|>", "<｜end▁of▁sentence｜>", "<|endoftext|>", "<|user|>",
               "<|observation|>", "<|endofresponse|>")  # fmt: skip
_HARMONY_END_TOKENS = ("<|return|>", "<|call|>")


_ANSWERS = (("<response>", "</response>"), ("<answer>", "</answer>"))
"""Granite 3.3 and ERNIE; Hunyuan."""


def detect_output(template_source: str, tokens: Collection[str], model_type: str) -> OutputDialect:
    """The dialect of a model.

    `template_source` is its chat template (Jinja or Go, "" if it has none), `tokens` its special and added tokens,
    `model_type` the one of config.json.
    """
    if model_type == "gpt_oss" or ("<|channel|>" in template_source and "<|message|>" in template_source):
        return OutputDialect(channels=True, end_tokens=tuple(end for end in _HARMONY_END_TOKENS if end in tokens))
    think = find_markers(template_source, tokens)
    answer = next((tags for tags in _ANSWERS if tags[0] in template_source), None)
    return OutputDialect(
        think=think,
        answer=answer if think is not None and think.opening == "<think>" else None,
        recipients="<atem:function_calls>" in template_source and "<|eom|>" in template_source,
        thinks=think is not None and (think.closing in template_source or thinks(template_source, tokens)),
        thinks_by_default=thinks_by_default(template_source),
        switchable=Switches(template_source).any,
        tools=formats_for(template_source, tokens),
        tool_tag=tool_tag(template_source),
        end_tokens=tuple(end for end in _END_TOKENS if end in tokens and (think is None or end != think.closing)),
    )


class _Splitter(Protocol):
    @property
    def inside_thinking(self) -> bool: ...

    def feed(self, text: str, *, final: bool = False, ended: bool = False) -> list[Segment]: ...


class OutputParser:
    """Splits the decoded text (special tokens included, end-of-turn tokens not) of one generation."""

    def __init__(
        self,
        dialect: OutputDialect,
        *,
        thinking: bool = True,
        tools: list[dict[str, Any]] | None = None,
        opens_thinking: bool = False,
        one_call: bool = False,
        new_id: Callable[[], str] = random_call_id,
    ) -> None:
        """`thinking` False: the caller wants none; what the model thinks all the same is left out.

        `tools`: those the request offered; without them nothing is taken for a call. `one_call`: nothing is passed on
        behind the first call. `new_id` makes the calls' ids.
        """
        self._wants_thinking = thinking
        self._one_call = one_call
        self.ended = False
        """The one call was found: the rest of the output does not count."""
        self._new_id = new_id
        offered_tools = OfferedTools(tools or [])
        self._splitter: _Splitter
        if dialect.channels:
            self._splitter = harmony.HarmonySplitter(offered_tools, opens_thinking=opens_thinking)
        else:
            formats = resolve(dialect.tools, dialect.tool_tag) if offered_tools.names and not dialect.plain else []
            if not formats and FUNCTIONARY.name in dialect.tools and not dialect.plain:
                # Its headers are there without tools, too.
                formats, offered_tools = [FUNCTIONARY], offered_tools.strict()
            if dialect.recipients:
                self._splitter = RecipientSplitter(formats, offered_tools, opens_thinking=opens_thinking)
            else:
                self._splitter = TagSplitter(
                    dialect.think,
                    formats,
                    offered_tools,
                    opens_thinking=opens_thinking,
                    answer=dialect.answer,
                    strays=() if dialect.plain else strays_of(dialect.tools),
                )

    @property
    def inside_thinking(self) -> bool:
        """What comes next is thinking, as far as one can tell."""
        return self._splitter.inside_thinking

    def feed(self, text: str) -> list[Segment]:
        """The segments that are certain after `text`."""
        return self._pass_on(self._splitter.feed(text))

    def finish(self, *, ended: bool = False) -> list[Segment]:
        """What was held back: no more text will come.

        `ended`: the model ended its turn, so that it has left out the closing marks that are missing. Otherwise a
        limit did, or a stop string: a call that is not whole has lost arguments.
        """
        return self._pass_on(self._splitter.feed("", final=True, ended=ended))

    def _pass_on(self, segments: list[Segment]) -> list[Segment]:
        if self.ended:
            return []
        for count, segment in enumerate(segments, 1):
            if segment.call is not None:
                # Only now: a format may read the same call several times while it waits for the end.
                segment.call.id = self._new_id()
                if self._one_call:
                    segments, self.ended = segments[:count], True
                    break
        return joined(segment for segment in segments if self._wants_thinking or segment.kind != "thinking")
