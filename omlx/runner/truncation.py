"""*Shortening* is what becomes of a conversation that does not fit its context: which messages go, and what is cut.

Policy only, as pure functions: the oldest messages go first, a tool call together with its results. What stays in
any case are the system messages, the last question and the newest exchange. What still does not fit keeps its
beginning (`num_keep` tokens) and its end, as in Ollama.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from omlx.messages.request import Message

_STAY = frozenset({"system", "developer"})
"""Roles whose messages are never dropped."""
_CHARACTERS = 8
"""Of a token, about: where the search for an end of so many tokens begins."""


class Tokens(NamedTuple):
    """The tokens of a text, and where each ends, in characters."""

    ids: list[int]
    ends: list[int]


def droppable(messages: Sequence[Message]) -> list[list[int]]:
    """The indices of messages that may go, oldest first. Those of one list go together."""
    units = _units(messages)
    question = max((index for index, message in enumerate(messages) if message.role == "user"), default=-1)
    return [unit for unit in units[:-1] if question not in unit and messages[unit[0]].role not in _STAY]


def _units(messages: Sequence[Message]) -> list[list[int]]:
    """All messages, a tool call and its results in one unit."""
    units: list[list[int]] = []
    for index, message in enumerate(messages):
        follows_call = units and messages[units[-1][0]].tool_calls
        if message.role == "tool" and follows_call:
            units[-1].append(index)
        else:
            units.append([index])
    return units


def longest(messages: Sequence[Message], done: Collection[int] = ()) -> int | None:
    """The message to cut: the longest that is no system message, none of those `done`, the oldest of several. None
    where there is nothing to spare it for."""
    if len(messages) < 2:
        return None
    others = [
        index
        for index, message in enumerate(messages)
        if message.role not in _STAY and message.content and index not in done
    ]
    return max(others, key=lambda index: len(messages[index].content), default=None)


def beginning(text: str, count: int, tokenize: Callable[[str], Tokens]) -> str:
    """The first `count` tokens of `text`, found without tokenizing much more than these."""
    size = count * _CHARACTERS
    while count > 0:
        tokens = tokenize(text[:size])
        if len(tokens.ids) > count:
            return text[: tokens.ends[count - 1]]
        if size >= len(text):
            return text
        size *= 2
    return ""


def end(text: str, count: int, tokenize: Callable[[str], Tokens]) -> str:
    """The last `count` tokens of `text`, found without tokenizing much more than these."""
    size = count * _CHARACTERS
    while count > 0:
        part = text[-size:]
        tokens = tokenize(part)
        if len(tokens.ids) > count:
            return part[tokens.ends[-count - 1] :]
        if size >= len(text):
            return text
        size *= 2
    return ""
