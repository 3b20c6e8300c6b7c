"""*Objects* are the JSON, or nearly JSON, in which calls and their arguments come.

Models slip: a bracket too few in front of the closing marker, quotes and words as Python writes them, a comma too
many. What can only mean one thing is read as that.
"""

from __future__ import annotations

import re
from typing import Any

from omlx.prompting.tools import literals
from omlx.prompting.tools.cursor import MAX_NESTING, Cursor, NotACall, load_json
from omlx.prompting.tools.offered import OfferedTools, calls_from_json

_TOKEN = re.compile(r'[\s\w:,.+-]+|"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)
_CLOSING = {"{": "}", "[": "]"}


def read_object(cursor: Cursor, *closings: str) -> Any:
    """A JSON object or array, or a Python one. Brackets that are missing in front of one of `closings` are added."""
    start = end = cursor.position
    if cursor.at_end:
        raise cursor.undecided()
    if cursor.text[start] not in "{[":
        raise NotACall
    parts: list[str] = []
    missing: list[str] = []
    while True:
        match = _TOKEN.match(cursor.text, end)
        if match is None:
            cursor.position = end
            if cursor.over():
                break
            if cursor.at_end or cursor.text[end] == '"':
                # At the end, or within a string.
                cursor.position = start
                raise cursor.undecided()
            if not cursor.next_is(*closings):
                cursor.position = start
                return literals.read_value(cursor)
            break
        token = match.group()
        if token in ("}", "]"):
            while missing[-1] != token and token in missing:
                parts.append(missing.pop())
            if missing[-1] != token:
                if token in closings:
                    break
                raise NotACall
            missing.pop()
        elif token in _CLOSING:
            missing.append(_CLOSING[token])
            if len(missing) > MAX_NESTING:
                raise NotACall
        parts.append(token)
        end = match.end()
        if not missing:
            break
    cursor.position = end
    text = "".join(parts).rstrip() + "".join(reversed(missing))
    try:
        return load_json(text)
    except NotACall:
        return literals.read_value(Cursor(text, 0, final=True))


def read_arguments(cursor: Cursor, *closings: str) -> Any:
    """The object that the arguments of one call are."""
    if not cursor.at_end and cursor.text[cursor.position] != "{":
        raise NotACall
    return read_object(cursor, *closings)


def read_calls(
    cursor: Cursor, offered_tools: OfferedTools, *closings: str, strict: bool = False, keyed: bool = False
) -> None:
    """A call as an object, or several in a list, kept in the cursor.

    `closings`: what ends them; `strict`, `keyed`: as in `calls_from_json`.
    """
    if cursor.at_end:
        raise cursor.undecided()
    if cursor.text[cursor.position] != "[":
        value = read_object(cursor, *closings)
        for call in calls_from_json(value, offered_tools, strict=strict, keyed=keyed):
            cursor.keep(call)
        if isinstance(value, dict) and isinstance(value.get("thought"), str):
            # xLAM's way to think.
            cursor.thought += value["thought"]
        return
    cursor.position += 1
    while True:
        cursor.blank()
        if cursor.maybe("]"):
            cursor.kept_end = cursor.position
            return
        for call in calls_from_json(read_object(cursor, "]", *closings), offered_tools, strict=strict, keyed=keyed):
            cursor.keep(call)
        cursor.blank()
        # The list's own bracket may be missing as well.
        if cursor.next_is(*closings):
            return
        if cursor.one_of(",", "]") == "]":
            cursor.kept_end = cursor.position
            return
