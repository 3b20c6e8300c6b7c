"""A *piece* is a bit of output after it has been told what it is: content, thinking, or one whole tool call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from omlx.request import ToolCall

PieceKind = Literal["content", "thinking", "tool_call"]


class Piece(NamedTuple):
    """`text` for content and thinking, `call` for a tool call."""

    kind: PieceKind
    text: str = ""
    call: ToolCall | None = None


def joined(pieces: Iterable[Piece]) -> list[Piece]:
    """The pieces with neighbours of one kind of text put together."""
    result: list[Piece] = []
    for piece in pieces:
        if result and piece.call is None and result[-1].kind == piece.kind:
            result[-1] = Piece(piece.kind, result[-1].text + piece.text)
        else:
            result.append(piece)
    return result


def partial(text: str, marker: str) -> int:
    """Length of the longest end of `text` that begins `marker` without being all of it."""
    tail = text[max(0, len(text) - len(marker) + 1) :]
    start = tail.find(marker[0])
    while start >= 0:
        if marker.startswith(tail[start:]):
            return len(tail) - start
        start = tail.find(marker[0], start + 1)
    return 0
