"""*Harmony* is gpt-oss's output: a sequence of messages, each with a channel, and tool calls addressed to a recipient.

`<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…`: the analysis channel is
thinking, the final one content; a message `to=functions.f` is a call of f. The prompt ends with `<|start|>assistant`,
so output starts in a header.
"""

from __future__ import annotations

import re
from typing import Literal

from omlx.dialect.pieces import Piece, PieceKind, partial
from omlx.dialect.tools.cursor import NotACall, load_json
from omlx.dialect.tools.rules import Offered, Rules
from omlx.dialect.tools.toolbox import Toolbox

_MESSAGE = "<|message|>"
ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
END = "<|end|>"
NEXT_MESSAGE = "<|end|><|start|>assistant"
"""What ends a message and begins the next."""
_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>")
_END = re.compile("|".join(map(re.escape, _ENDS)))
_HEADER_STARTS = ("<|channel|>", "<|start|>", _MESSAGE, " to=", "<|constrain|>")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"to=([^\s<]+)")


class HarmonySplitter:
    """Follows one generation. Text that is no header at the start is content (a continued answer)."""

    def __init__(self, toolbox: Toolbox, *, opens_thinking: bool = False) -> None:
        self._toolbox = toolbox
        self._buffer = ""
        self._state: Literal["start", "header", "body", "call"] = "start"
        self._kind: PieceKind = "content"
        if opens_thinking:
            self._state, self._kind = "body", "thinking"
        self._recipient = ""
        self._called = False

    @property
    def inside_thinking(self) -> bool:
        return self._state == "body" and self._kind == "thinking"

    def feed(self, text: str, *, final: bool = False) -> list[Piece]:
        self._buffer += text
        pieces: list[Piece] = []
        while self._step(pieces, final):
            pass
        return pieces

    def _step(self, pieces: list[Piece], final: bool) -> bool:
        """Do what the buffer allows; False: nothing more without new text."""
        match self._state:
            case "start":
                return self._start(final)
            case "header":
                return self._header(pieces, final)
            case "body":
                return self._body(pieces, final)
            case "call":
                return self._call(pieces, final)

    def _start(self, final: bool) -> bool:
        if any(self._buffer.startswith(start) for start in _HEADER_STARTS):
            self._state = "header"
            return True
        if not self._buffer or (not final and any(start.startswith(self._buffer) for start in _HEADER_STARTS)):
            return False
        self._state, self._kind = "body", "content"
        return True

    def _header(self, pieces: list[Piece], final: bool) -> bool:
        header, found, rest = self._buffer.partition(_MESSAGE)
        if not found:
            if final and self._buffer.strip():
                # A header without a message: not ours to interpret, and not to be lost.
                text = _END.sub("", self._buffer)
                self._buffer = ""
                if not _CHANNEL.search(header) and not header.startswith("<|start|>"):
                    pieces.append(Piece("content", text))
            return False
        self._buffer = rest
        channel = _CHANNEL.search(header)
        recipient = _RECIPIENT.search(header)
        self._recipient = recipient.group(1) if recipient else ""
        self._kind = "thinking" if channel and channel.group(1) == "analysis" else "content"
        self._state = "call" if self._recipient and self._recipient != "assistant" else "body"
        return True

    def _body(self, pieces: list[Piece], final: bool) -> bool:
        end = _END.search(self._buffer)
        if end is None:
            held = 0 if final else max(partial(self._buffer, marker) for marker in _ENDS)
            text, self._buffer = self._buffer[: len(self._buffer) - held], self._buffer[len(self._buffer) - held :]
            if text:
                pieces.append(Piece(self._kind, text))
            return False
        if end.start():
            pieces.append(Piece(self._kind, self._buffer[: end.start()]))
        self._leave(end)
        return True

    def _leave(self, end: re.Match[str]) -> None:
        """Go on to the next header; the tokens that begin one belong to it."""
        self._buffer = self._buffer[end.start() if end.group() in _HEADER_STARTS else end.end() :]
        self._state = "header"

    def _call(self, pieces: list[Piece], final: bool) -> bool:
        end = _END.search(self._buffer)
        if end is None and not final:
            return False
        body = self._buffer[: end.start()] if end else self._buffer
        found = self._calls(body)
        # A further call that the end of the output cut off is no answer.
        if not (end is None and self._called and found and found[0].call is None):
            pieces.extend(found)
        self._called = self._called or any(piece.call is not None for piece in found)
        if end is None:
            self._buffer = ""
            return False
        self._leave(end)
        return True

    def _calls(self, body: str) -> list[Piece]:
        try:
            arguments = load_json(body) if body.strip() else {}
            return [Piece("tool_call", call=self._toolbox.call(self._recipient, arguments))]
        except NotACall:
            return [Piece(self._kind, body)] if body else []


def write(rules: Rules, answer: str | None, *, opens_thinking: bool) -> str:
    """A reply that calls a tool or, where there is an `answer`, may give that instead; it may think first."""

    def call(tool: Offered) -> str:
        head = f"<|channel|>commentary to=functions.{tool.name} <|constrain|>json<|message|>"
        return f"{rules.text(head)} {rules.json(tool.schema)}"

    last = rules.each(call)
    if answer is not None:
        last = rules.rule(f"{last} | {rules.text(FINAL)} {answer}")
    thought = f"{rules.free()} {rules.text(NEXT_MESSAGE)}"
    return f"{thought} {last}" if opens_thinking else f"({rules.text(ANALYSIS)} {thought})? {last}"
