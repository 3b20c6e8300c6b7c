"""*Harmony* is gpt-oss's output: a sequence of messages, each with a channel, and tool calls addressed to a recipient.

`<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…`: the analysis channel is
thinking, the final one content; a message `to=functions.f` is a call of f. The prompt ends with
`<|start|>assistant`, so output starts in a header.
"""

from __future__ import annotations

import re
from typing import Literal

from omlx.prompting.segments import PieceKind, Segment, partial
from omlx.prompting.tools.cursor import Cursor, NotACall
from omlx.prompting.tools.objects import read_object
from omlx.prompting.tools.offered import OfferedTools
from omlx.prompting.tools.rules import OfferedTool, Rules

_MESSAGE = "<|message|>"
ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
END = "<|end|>"
NEXT_MESSAGE = "<|end|><|start|>assistant"
"""What ends a message and begins the next."""
_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>")
_STRAYS = (_MESSAGE, "<|constrain|>")
"""Tokens that mean nothing within a message."""
_MARKS = (*_ENDS, *_STRAYS)
_MARK = re.compile("|".join(map(re.escape, _MARKS)))
_HEADER_STARTS = ("<|channel|>", "<|start|>", _MESSAGE, " to=", "<|constrain|>")
_UNMARKED = tuple(f"{name}{end}" for name in ("analysis", "commentary", "final") for end in (_MESSAGE, " to="))
"""Headers that have lost the first token."""
_LATER_STARTS = (*_HEADER_STARTS, *_UNMARKED, "assistant", "to=")
"""Behind a message, a header may have lost its first token."""
_CHANNEL = re.compile(r"(?:<\|channel\|>\s*|\A\s*(?:assistant\s*)?(?=analysis|commentary|final))(\w+)")
_RECIPIENT = re.compile(r"to=([^\s<]+)")
_HEADER = re.compile(
    r"\s*(?:assistant\s*)?(?:analysis|commentary|final)?(?:<\|start\|>|<\|channel\|>\s*(?:analysis|commentary|final)?|<\|constrain\|>\s*(?:json|code)?|assistant|commentary|to=[^\s<]+|json\b|code\b|\s)*"
)
_BEGUN = re.compile(r"<(?:\|\w*\|?)?$")
"""A token at the end of the text that is not whole."""


class HarmonySplitter:
    """Follows one generation. Text that is no header at the start is content (a continued answer)."""

    def __init__(self, offered_tools: OfferedTools, *, opens_thinking: bool = False) -> None:
        self._offered_tools = offered_tools
        self._buffer = ""
        self._state: Literal["start", "header", "body", "call"] = "start"
        self._kind: PieceKind = "content"
        if opens_thinking:
            self._state, self._kind = "body", "thinking"
        self._recipient = ""
        self._called = self._ended = False
        self._later = False
        """A message has ended."""

    @property
    def inside_thinking(self) -> bool:
        return self._state == "body" and self._kind == "thinking"

    def feed(self, text: str, *, final: bool = False, ended: bool = False) -> list[Segment]:
        self._buffer += text
        self._ended = final and ended
        segments: list[Segment] = []
        while self._step(segments, final):
            pass
        return segments

    def _step(self, segments: list[Segment], final: bool) -> bool:
        """Do what the buffer allows; False: nothing more without new text."""
        match self._state:
            case "start":
                return self._start(final)
            case "header":
                return self._header(segments, final)
            case "body":
                return self._body(segments, final)
            case "call":
                return self._call(segments, final)

    def _start(self, final: bool) -> bool:
        starts = _LATER_STARTS if self._later else (*_HEADER_STARTS, *_UNMARKED)
        text = self._buffer.lstrip("\n") if self._later else self._buffer
        if any(text.startswith(start) for start in starts):
            self._state = "header"
            return True
        if not text or (not final and any(start.startswith(text) for start in starts)):
            return False
        self._state, self._kind = "body", "content"
        return True

    def _header(self, segments: list[Segment], final: bool) -> bool:
        """What is no header word in front of the end of a message that has no `<|message|>` is its text."""
        words = _HEADER.match(self._buffer)
        assert words is not None
        end = _MARK.search(self._buffer, words.end())
        if end is None and not (final and self._buffer):
            return False
        header = self._buffer[: end.start()] if end else _BEGUN.sub("", self._buffer)
        text = "" if end and end.group() == _MESSAGE else header[words.end() :]
        channels = _CHANNEL.findall(header)
        recipient = _RECIPIENT.search(header[: words.end()])
        self._recipient = recipient.group(1) if recipient else ""
        self._kind = "thinking" if channels and channels[-1] == "analysis" else "content"
        self._state = "call" if self._recipient and self._recipient != "assistant" else "body"
        if end and end.group() == _MESSAGE:
            self._buffer = self._buffer[end.end() :]
        elif text.strip():
            self._buffer = text.lstrip() + (self._buffer[end.start() :] if end else "")
        elif end is None:
            self._buffer, self._state = "", "start"
        else:
            self._buffer = self._buffer[end.start() :]
        return True

    def _body(self, segments: list[Segment], final: bool) -> bool:
        end = _MARK.search(self._buffer)
        if end is None:
            held = 0 if final else max(partial(self._buffer, marker) for marker in _MARKS)
            text, self._buffer = self._buffer[: len(self._buffer) - held], self._buffer[len(self._buffer) - held :]
            if text:
                segments.append(Segment(self._kind, text))
            return False
        if end.start():
            segments.append(Segment(self._kind, self._buffer[: end.start()]))
        self._leave(end)
        return True

    def _leave(self, end: re.Match[str]) -> None:
        """Go on to the next header; the tokens that begin one belong to it."""
        if end.group() in _STRAYS:
            self._buffer = self._buffer[end.end() :]
            return
        self._buffer = self._buffer[end.start() if end.group() in _HEADER_STARTS else end.end() :]
        self._state, self._later = "start", True

    def _call(self, segments: list[Segment], final: bool) -> bool:
        end = _MARK.search(self._buffer)
        if end is None and not final:
            return False
        if end and end.group() in _STRAYS:
            self._buffer = self._buffer[: end.start()] + self._buffer[end.end() :]
            return True
        body = self._buffer[: end.start()] if end else self._buffer
        found = self._calls(body, ended=self._ended or end is not None)
        # A further call that the end of the output cut off is no answer.
        if not (end is None and self._called and found and found[0].call is None):
            segments.extend(found)
        self._called = self._called or any(segment.call is not None for segment in found)
        if end is None:
            self._buffer = ""
            return False
        self._leave(end)
        return True

    def _calls(self, body: str, *, ended: bool) -> list[Segment]:
        """`ended`: see `Cursor`."""
        cursor = Cursor(body, 0, final=True, ended=ended)
        cursor.blank()
        try:
            call = self._offered_tools.call(self._recipient, {} if cursor.at_end else read_object(cursor))
        except NotACall:
            return [Segment(self._kind, body)] if body else []
        # A brace too many is a slip that gpt-oss makes.
        behind = cursor.text[cursor.position :].lstrip("} \n")
        found = [Segment("tool_call", call=call)]
        return [*found, Segment(self._kind, behind)] if behind else found


def write(rules: Rules, answer: str | None, *, opens_thinking: bool) -> str:
    """A reply that calls a tool or, where there is an `answer`, may give that instead; it may think first."""

    def call(tool: OfferedTool) -> str:
        head = f"<|channel|>commentary to=functions.{tool.name} <|constrain|>json<|message|>"
        return f"{rules.text(head)} {rules.json(tool.schema)}"

    last = rules.each(call)
    if answer is not None:
        last = rules.rule(f"{last} | {rules.text(FINAL)} {answer}")
    thought = f"{rules.free()} {rules.text(NEXT_MESSAGE)}"
    return f"{thought} {last}" if opens_thinking else f"({rules.text(ANALYSIS)} {thought})? {last}"
