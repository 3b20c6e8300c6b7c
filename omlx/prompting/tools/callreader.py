"""The *call reader* tries the formats that a model speaks, one after the other, at a place in its output."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from omlx.messages.request import ToolCall
from omlx.prompting.tools.cursor import Cursor, NeedMore, NotACall
from omlx.prompting.tools.format import ToolFormat
from omlx.prompting.tools.offered import OfferedTools

No = Literal["no", "cut"]
"""There is no call; or one that the end of the output cut off."""


def _ended(known: ToolFormat, text: str) -> bool:
    """The text holds a closing marker of the format that ends something: what is in front of it was not cut off."""
    closings = "|".join(re.escape(closing) for closing in known.closings if len(closing) > 3)
    return bool(closings) and re.search(rf"[\s\])}}>\"'`]({closings})", text) is not None


class Found:
    """Calls, and where the text behind them begins."""

    def __init__(self, calls: list[ToolCall], end: int, thought: str = "") -> None:
        self.calls = calls
        self.end = end
        self.thought = thought


class CallReader:
    def __init__(self, formats: Sequence[ToolFormat], offered_tools: OfferedTools) -> None:
        self.marked = [known for known in formats if not known.bare]
        self.bare = [known for known in formats if known.bare or known.starts]
        self.openings = {opening for known in self.marked for opening in known.openings}
        self._offered_tools = offered_tools
        self._offered = offered_tools.strict()

    def __call__(
        self, text: str, place: int, *, final: bool, ended: bool = False, start: bool = False
    ) -> Found | No | None:
        """What the first format that knows it reads at `place`; None: more text decides.

        `final`, `ended`: see `Cursor`. `start`: the output begins there, so that nothing need mark a call.
        """
        cut = False
        for known in self.bare if start else self.marked:
            strict = known.bare
            openings = known.openings or [f"{name}\n" for name in self._offered_tools.names]
            implied = known.starts and start
            if not implied and not any(text.startswith(opening, place) for opening in openings):
                if not final and any(opening.startswith(text[place : place + len(opening)]) for opening in openings):
                    return None
                continue
            cursor = Cursor(text, place, final=final, ended=ended)
            try:
                known.read(cursor, self._offered if strict else self._offered_tools)
                end = cursor.position
            except NeedMore:
                return None
            except NotACall:
                end = cursor.kept_end
                cursor.cut = cursor.cut and not _ended(known, text[end:])
                cut = cut or cursor.cut
                if not cursor.kept or (strict and not cursor.cut):
                    continue
            if strict and not cursor.kept:
                continue
            # The beginning of another call behind these, where the output ends, belongs to nothing.
            return Found(cursor.kept, len(text) if cursor.cut else end, cursor.thought)
        return "cut" if cut else "no"
