"""A *tool format* is one family's way of writing calls: what opens one, and how to read it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from omlx.dialect.tools.cursor import Cursor
from omlx.dialect.tools.rules import Rules
from omlx.dialect.tools.toolbox import Toolbox
from omlx.request import ToolCall

Writer = Callable[[Rules], str]
"""One or more calls as an expression of a grammar."""
Reader = Callable[[Cursor, Toolbox], list[ToolCall]]
"""Reads from the opening on; returns the calls with the cursor behind them, or raises NotACall or NeedMore."""


class ToolFormat(NamedTuple):
    """A format. It is spoken by a model whose template or vocabulary has one of `marks`."""

    name: str
    read: Reader
    openings: tuple[str, ...]
    marks: tuple[str, ...] = ()
    bare: bool = False
    """Nothing marks a call: it is looked for only where the output begins."""
    closings: tuple[str, ...] = ()
    """What a call ends with; used only to look again when it arrives."""
    write: Writer | None = None
    """For replies that must be calls; None: such a reply is written in another format."""

    def spoken(self, template: str, tokens: Collection[str]) -> bool:
        return any(mark in template or mark in tokens for mark in self.marks)
