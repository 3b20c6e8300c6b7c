"""The *output dialect* is how a model marks what it writes: which markers enclose thinking and tool calls.

`detect_output` finds it from the template and vocabulary; an `OutputParser` follows one generation and splits its text
into pieces, holding back what may become a marker. Pieces never depend on where the text was cut into chunks.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal, NamedTuple

import msgspec

from omlx.dialect.thinking import ThinkMarkers, find_markers
from omlx.request import ToolCall

PieceKind = Literal["content", "thinking", "tool_call"]


class Piece(NamedTuple):
    """A bit of output: text of one kind, or one whole tool call."""

    kind: PieceKind
    text: str = ""
    call: ToolCall | None = None


class OutputDialect(msgspec.Struct, frozen=True, kw_only=True):
    """How a model marks its output."""

    think: ThinkMarkers | None = None


PLAIN = OutputDialect()
"""No markers: all output is content (raw prompts, base models)."""


def detect_output(template_source: str, tokens: Collection[str], model_type: str) -> OutputDialect:
    """The dialect of a model.

    `template_source` is its chat template (Jinja or Go, "" if it has none), `tokens` its special and added tokens,
    `model_type` the one of config.json.
    """
    return OutputDialect(think=find_markers(template_source, tokens))


class OutputParser:
    """Splits the decoded text (special tokens included, end-of-turn tokens not) of one generation."""

    def __init__(
        self,
        dialect: OutputDialect,
        *,
        thinking: bool = True,
        tools: list[dict[str, Any]] | None = None,
        opens_thinking: bool = False,
    ) -> None:
        """`thinking` False: the caller wants none; what the model thinks all the same is kept out of the content."""
        self._think = dialect.think
        self._wanted = thinking
        self._buffer = ""
        self._state: Literal["start", "thinking", "after", "content"] = "start"
        if self._think is None:
            self._state = "content"
        elif opens_thinking:
            self._state = "thinking"
        self._blank = True

    def feed(self, text: str) -> list[Piece]:
        """The pieces that are certain after `text`."""
        self._buffer += text
        return self._take(final=False)

    def finish(self) -> list[Piece]:
        """What was held back: no more text will come."""
        return self._take(final=True)

    def _take(self, final: bool) -> list[Piece]:
        pieces: list[Piece] = []
        while self._buffer:
            before = self._state
            text, kind = self._step(final)
            if text and (kind == "content" or self._wanted):
                pieces.append(Piece(kind, text))
            if self._state == before:
                break
        return pieces

    def _step(self, final: bool) -> tuple[str, PieceKind]:
        if self._state == "content" or self._think is None:
            return self._everything(), "content"
        if self._state == "start":
            return self._open(final), "content"
        if self._state == "thinking":
            return self._inside(final), "thinking"
        self._buffer = self._buffer.lstrip()
        if self._buffer:
            self._state = "content"
        return "", "content"

    def _open(self, final: bool) -> str:
        assert self._think is not None
        text = self._buffer.lstrip()
        opening = self._think.opening
        if text.startswith(opening):
            self._buffer = text[len(opening) :]
            self._state = "thinking"
        elif final or not opening.startswith(text):
            self._state = "content"
            return self._everything()
        return ""

    def _inside(self, final: bool) -> str:
        assert self._think is not None
        if self._blank:
            self._buffer = self._buffer.lstrip()
            self._blank = not self._buffer
        before, closing, behind = self._buffer.partition(self._think.closing)
        if closing:
            self._buffer = behind
            self._state = "after"
            return before
        held = 0 if final else _partial(self._buffer, self._think.closing)
        self._buffer = before[len(before) - held :]
        return before[: len(before) - held]

    def _everything(self) -> str:
        text, self._buffer = self._buffer, ""
        return text


def _partial(text: str, marker: str) -> int:
    """Length of the longest end of `text` that begins `marker`."""
    return next((size for size in range(min(len(marker) - 1, len(text)), 0, -1) if text.endswith(marker[:size])), 0)
