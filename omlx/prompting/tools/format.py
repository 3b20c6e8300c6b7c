"""A *tool format* is one family's way of writing calls: what opens one, and how to read it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from omlx.prompting.tools.cursor import Cursor
from omlx.prompting.tools.offered import OfferedTools
from omlx.prompting.tools.rules import Rules

Writer = Callable[[Rules], str]
"""One or more calls as an expression of a grammar."""
Reader = Callable[[Cursor, OfferedTools], None]
"""Reads from the opening on, keeps the calls in the cursor and leaves it behind them; or raises NotACall or NeedMore.

What was kept before NotACall counts; a reader that keeps nothing has read markers that mean nothing."""


class ToolFormat(NamedTuple):
    """A format. It is spoken by a model whose template or vocabulary has one of `marks`."""

    name: str
    read: Reader
    openings: tuple[str, ...]
    marks: tuple[str, ...] = ()
    bare: bool = False
    """Nothing marks a call: it is looked for only where the output begins."""
    starts: bool = False
    """Output begins as if an opening stood in front of it."""
    closings: tuple[str, ...] = ()
    """What a call ends with: a sign to look again when it arrives, and no text where it stands alone behind a call."""
    strays: tuple[str, ...] = ()
    """Tokens of the family that are never text, wherever they stand in the output."""
    orphans: tuple[str, ...] = ()
    """Further tokens that are no text where they stand alone behind a call."""
    write: Writer | None = None
    """For replies that must be calls; None: such a reply is written in another format."""

    def spoken(self, template: str, tokens: Collection[str]) -> bool:
        return any(mark in template or mark in tokens for mark in self.marks)
