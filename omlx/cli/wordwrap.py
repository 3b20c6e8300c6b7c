"""Word wrap for text that arrives in pieces: a word that turns out too long for its line is moved to the next one."""

from __future__ import annotations

from collections.abc import Callable

from omlx.cli.tables import char_width, text_width

MARGIN = 5
NARROWEST = 10


class WordWrap:
    """Turns streamed text into what a terminal gets. `columns` is asked anew for each piece: windows are resized."""

    def __init__(self, columns: Callable[[], int]) -> None:
        self._columns = columns
        self._column = 0
        self._word = ""

    def feed(self, text: str) -> str:
        """`text` with line breaks where words would cross the margin; moves the cursor back over a begun word."""
        width = self._columns()
        if width < NARROWEST:
            return text
        limit = width - MARGIN
        return "".join(self._place(character, limit) for character in text)

    def _place(self, character: str, limit: int) -> str:
        if character == "\n":
            self._column, self._word = 0, ""
            return character
        if character in " \t":
            self._word = ""
            if self._column >= limit:
                self._column = 0
                return "\n"
            self._column += 1
            return character
        size = char_width(character)
        moved = self._break_line(size, limit) if self._column + size > limit else ""
        self._column += size
        # Between two wide characters a line may end anywhere.
        self._word = "" if size == 2 else self._word + character
        return moved + character

    def _break_line(self, size: int, limit: int) -> str:
        """A new line; the word under way comes along unless it fills the line alone."""
        back = text_width(self._word)
        if not back or back >= self._column or back + size > limit:
            self._column, self._word = 0, ""
            return "\n"
        self._column = back
        return f"\x1b[{back}D\x1b[K\n{self._word}"
