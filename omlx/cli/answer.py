"""An answer on the terminal: streamed text, the thinking before it, and the numbers after it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Protocol

from omlx.cli.console import columns, err, is_terminal, out
from omlx.cli.wordwrap import WordWrap
from omlx.units import format_duration

if TYPE_CHECKING:
    from msgspec import UnsetType

_GREY, _BOLD, _PLAIN = "\x1b[38;5;245m", "\x1b[1m", "\x1b[0m"


class Numbers(Protocol):
    """The metrics of a final chunk: nanoseconds and counts."""

    total_duration: int
    load_duration: int
    prompt_eval_count: int
    prompt_eval_duration: int
    eval_count: int | UnsetType
    eval_duration: int


class TerminalAnswer:
    """Prints one answer to stdout as it arrives. `text` and `thinking` collect what came."""

    def __init__(self, *, wrap: bool, hide_thinking: bool) -> None:
        self._terminal = is_terminal(sys.stdout)
        self._styled = self._terminal and not os.environ.get("NO_COLOR")
        self._wrap = WordWrap(lambda: columns(sys.stdout)) if wrap and self._terminal else None
        self._hide_thinking = hide_thinking
        self._thinking_open = False
        self.text = ""
        self.thinking = ""

    def feed(self, text: str, thinking: str) -> None:
        if thinking:
            if not self._hide_thinking:
                if not self._thinking_open:
                    self._open_thinking()
                out(self._wrapped(thinking), end="")
            self.thinking += thinking
        if text:
            self._close_thinking()
            self.text += text
            out(self._wrapped(text), end="")

    def end(self) -> None:
        """All has come: two line ends follow the answer."""
        self._reset()
        out("\n")

    def break_off(self) -> None:
        """No more comes although more was due. On a terminal what follows starts on a new line."""
        self._reset()
        if self._terminal and not (self.text or self.thinking or "\n").endswith("\n"):
            out("")

    def _reset(self) -> None:
        if self._thinking_open and self._styled:
            out(_PLAIN, end="")
        self._thinking_open = False

    def _open_thinking(self) -> None:
        self._thinking_open = True
        title = "Thinking...\n"
        out(f"{_GREY}{_BOLD}{title}{_PLAIN}{_GREY}" if self._styled else title, end="")

    def _close_thinking(self) -> None:
        if not self._thinking_open:
            return
        self._thinking_open = False
        title = "...done thinking.\n\n"
        gap = "" if self.thinking.endswith("\n") else "\n"
        out(gap + (f"{_GREY}{_BOLD}{title}{_PLAIN}" if self._styled else title), end="")
        if self._wrap:
            self._wrap = WordWrap(lambda: columns(sys.stdout))

    def _wrapped(self, text: str) -> str:
        return self._wrap.feed(text) if self._wrap else text


def print_numbers(numbers: Numbers) -> None:
    """The `--verbose` block, on stderr; lines without a value are left out."""
    lines = [
        ("total duration:", _duration(numbers.total_duration)),
        ("load duration:", _duration(numbers.load_duration)),
        ("prompt eval count:", _tokens(numbers.prompt_eval_count)),
        ("prompt eval duration:", _duration(numbers.prompt_eval_duration)),
        ("prompt eval rate:", _rate(numbers.prompt_eval_count, numbers.prompt_eval_duration)),
        ("eval count:", _tokens(numbers.eval_count or 0)),
        ("eval duration:", _duration(numbers.eval_duration)),
        ("eval rate:", _rate(numbers.eval_count or 0, numbers.eval_duration)),
    ]
    err("".join(f"{label:<22}{value}\n" for label, value in lines if value), end="")


def _duration(nanoseconds: int) -> str:
    return format_duration(nanoseconds / 1e9) if nanoseconds > 0 else ""


def _tokens(count: int) -> str:
    return f"{count} token(s)" if count > 0 else ""


def _rate(count: int, nanoseconds: int) -> str:
    return f"{count / nanoseconds * 1e9:.2f} tokens/s" if count > 0 and nanoseconds > 0 else ""
