"""Kimi: K2 puts `functions.name:0` and JSON between tokens; K3 writes elements in a notation of its own."""

from __future__ import annotations

import re

from omlx.dialect.tools.cursor import Cursor, NotACall
from omlx.dialect.tools.format import ToolFormat
from omlx.dialect.tools.rules import Offered, Rules
from omlx.dialect.tools.toolbox import Toolbox
from omlx.request import ToolCall

_SECTION, _SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _CALL_END, _ARGUMENTS = "<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_call_argument_begin|>"


def read_k2(cursor: Cursor, toolbox: Toolbox) -> list[ToolCall]:
    if cursor.one_of(_SECTION, _CALL) == _SECTION:
        cursor.blank()
        cursor.literal(_CALL)
    calls: list[ToolCall] = []
    while True:
        name = cursor.until(_ARGUMENTS, at_most=200)
        cursor.blank()
        calls.append(toolbox.call(name, cursor.json()))
        cursor.blank()
        cursor.maybe(_CALL_END)
        cursor.blank()
        if not cursor.maybe(_CALL):
            cursor.maybe(_SECTION_END)
            return calls


_ATTRIBUTE = re.compile(r'(\w+)="([^"]*)"')


def _open(cursor: Cursor, kind: str) -> dict[str, str]:
    """The attributes of an element whose `<|open|>kind` is already read."""
    return dict(_ATTRIBUTE.findall(cursor.until("<|sep|>", at_most=300)))


def read_k3(cursor: Cursor, toolbox: Toolbox) -> list[ToolCall]:
    cursor.literal("<|open|>tools<|sep|>")
    calls: list[ToolCall] = []
    while True:
        cursor.blank()
        if cursor.one_of("<|close|>tools<|sep|>", "<|open|>call") != "<|open|>call":
            if not calls:
                raise NotACall
            return calls
        calls.append(_k3_call(cursor, toolbox))


def _k3_call(cursor: Cursor, toolbox: Toolbox) -> ToolCall:
    name = _open(cursor, "call").get("tool", "")
    arguments: dict[str, str] = {}
    texts: dict[str, str] = {}
    while True:
        cursor.blank()
        match cursor.one_of("<|close|>call<|sep|>", "<|open|>argument", "<|open|>json"):
            case "<|close|>call<|sep|>":
                call = toolbox.call_with_texts(name, arguments)
                call.arguments.update(texts)
                return call
            case "<|open|>json":
                _open(cursor, "json")
                whole = cursor.json()
                cursor.blank()
                cursor.literal("<|close|>json<|sep|>")
                cursor.blank()
                cursor.literal("<|close|>call<|sep|>")
                return toolbox.call(name, whole)
        attributes = _open(cursor, "argument")
        value = cursor.until("<|close|>argument<|sep|>")
        (texts if attributes.get("type") == "string" else arguments)[attributes.get("key", "")] = value


def write_k2(rules: Rules) -> str:
    def call(tool: Offered) -> str:
        head = f"{rules.text(f'{_CALL}functions.{tool.name}:')} /[0-9]{{1,3}}/ {rules.text(_ARGUMENTS)}"
        return f"{head} {rules.json(tool.schema)} {rules.text(_CALL_END)}"

    return " ".join((rules.text(_SECTION), rules.repeated(rules.each(call)), rules.text(_SECTION_END)))


K2 = ToolFormat("kimi-k2", read_k2, (_SECTION, _CALL), (_CALL,), closings=(_CALL_END, _SECTION_END), write=write_k2)
K3 = ToolFormat(
    "kimi-k3",
    read_k3,
    ("<|open|>tools<|sep|>",),
    ("<|open|>tools<|sep|>", "<|end_of_msg|>"),
    closings=("<|close|>tools<|sep|>",),
)
