"""Calls that nothing marks but their shape: bare JSON, JSON in a code fence, or behind the tag of a Go template.

They count only where the output begins, and only if the object names a tool that was offered and has arguments: what
looks like JSON is usually an answer.
"""

from __future__ import annotations

import re

from omlx.prompting.tools.cursor import Cursor, NotACall
from omlx.prompting.tools.format import ToolFormat
from omlx.prompting.tools.objects import read_calls
from omlx.prompting.tools.offered import OfferedTools

_FIRST_KEY = re.compile(r'\{\s*"((?:[^"\\]|\\.)*)"')
_NAME_KEYS = {"name", "tool_name", "tool", "function_name"}
_FIRST_TEXT = re.compile(r'\{\s*"(?:[^"\\]|\\.)*"\s*:\s*"((?:[^"\\]|\\.)*)"')
_CALL_KEYS = {"name", "tool_name", "tool", "function", "function_name", "type", "id", "arguments", "parameters", "args",
              "input", "tool_calls", "index", "thought"}  # fmt: skip


def read_json_sequence(cursor: Cursor, offered_tools: OfferedTools) -> None:
    """JSON calls, one or several with `;` or white space between them (as Llama 3 writes parallel calls)."""
    _check_first_key(cursor, offered_tools)
    read_calls(cursor, offered_tools, strict=True)
    while True:
        end = cursor.position
        cursor.blank()
        if cursor.maybe(";"):
            cursor.blank()
        if cursor.at_end:
            cursor.wait()
            return
        try:
            _check_first_key(cursor, offered_tools)
            read_calls(cursor, offered_tools, strict=True)
        except NotACall:
            cursor.position = end
            return


def _check_first_key(cursor: Cursor, offered_tools: OfferedTools) -> None:
    """Tell an answer in JSON from a call as soon as its first key is there, so that the answer is not held back."""
    start = cursor.text.find("{", cursor.position, cursor.position + 8)
    key = _FIRST_KEY.match(cursor.text, start) if start >= 0 else None
    if key is not None and key.group(1) not in _CALL_KEYS:
        raise NotACall
    value = _FIRST_TEXT.match(cursor.text, start) if key is not None else None
    if key is not None and value is not None:
        if key.group(1) in _NAME_KEYS:
            offered_tools.known(value.group(1))
        elif key.group(1) == "type" and value.group(1) != "function":
            raise NotACall


def _read_fenced(cursor: Cursor, offered_tools: OfferedTools) -> None:
    cursor.literal("```")
    cursor.one_of("json\n", "tool_call\n", "\n")
    cursor.blank()
    read_json_sequence(cursor, offered_tools)
    cursor.blank()
    cursor.literal("```")


BARE = ToolFormat("json", read_json_sequence, ("{", "["), bare=True, closings=("}", "]"))
FENCED = ToolFormat("fenced", _read_fenced, ("```",), bare=True, closings=("```",))


def after_tag(tag: str) -> ToolFormat:
    """The calls of a Go template that writes `tag` in front of their JSON (Ollama's generic parser)."""

    def read(cursor: Cursor, offered_tools: OfferedTools) -> None:
        cursor.literal(tag)
        cursor.blank()
        read_calls(cursor, offered_tools)

    return ToolFormat("tag", read, (tag,), closings=("}", "]"))
