"""Plain tables as Ollama prints them: left-aligned columns, no borders, every cell followed by four blanks.

Scripts cut these with awk, so the trailing blanks are part of the format: rows end with four, the header with one.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

GAP = " " * 4
MAX_CELL = 30
"""Cells with blanks in them are wrapped at this width, unless a table says otherwise."""


def percent(part: int, whole: int) -> str:
    """A cell that tells a share: "12%", and "-" of nothing."""
    return f"{100 * part / whole:.0f}%" if whole else "-"


def text_width(text: str) -> int:
    """Columns `text` takes on a terminal: East Asian wide characters take two, combining marks none."""
    return len(text) if text.isascii() else sum(char_width(character) for character in text)


def char_width(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in {"Cf", "Mn", "Me"}:
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def render(rows: Sequence[Sequence[str]], header: Sequence[str] = (), *, max_cell: int = MAX_CELL) -> str:
    """The table as text, one "\\n" after each line; "" if there is neither header nor row."""
    cells = [[_wrap(cell, max_cell) for cell in row] for row in rows]
    count = max((len(row) for row in [header, *rows]), default=0)
    widths = [
        max((text_width(line) for row in cells if i < len(row) for line in row[i]), default=0) for i in range(count)
    ]
    lines = []
    if header:
        widths = [max(width, len(title)) for width, title in zip(widths, header, strict=True)]
        padded = [_pad(title, width) for title, width in zip(header, widths, strict=True)]
        lines.append(GAP.join(padded) + " ")
    for row in cells:
        for i in range(max(len(cell) for cell in row)):
            parts = [row[j][i] if j < len(row) and i < len(row[j]) else "" for j in range(count)]
            lines.append("".join(_pad(part, width) + GAP for part, width in zip(parts, widths, strict=True)))
    return "".join(line + "\n" for line in lines)


def _pad(text: str, width: int) -> str:
    return text + " " * (width - text_width(text))


def _wrap(text: str, limit: int) -> list[str]:
    """Lines of one cell. Only blanks break; a longer word stays whole."""
    if text_width(text) <= limit and "\n" not in text:
        return [text]
    lines: list[str] = []
    for word in text.split():
        if lines and text_width(lines[-1]) + 1 + text_width(word) <= limit:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines or [""]
