"""A *segment* is a bit of output after it has been told what it is: content, thinking, or one whole tool call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from omlx.messages.request import ToolCall

PieceKind = Literal["content", "thinking", "tool_call"]


class Segment(NamedTuple):
    """`text` for content and thinking, `call` for a tool call."""

    kind: PieceKind
    text: str = ""
    call: ToolCall | None = None


def joined(segments: Iterable[Segment]) -> list[Segment]:
    """The segments with neighbours of one kind of text put together."""
    result: list[Segment] = []
    for segment in segments:
        if result and segment.call is None and result[-1].kind == segment.kind:
            result[-1] = Segment(segment.kind, result[-1].text + segment.text)
        else:
            result.append(segment)
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
