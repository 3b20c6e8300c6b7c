"""MiniMax M3: elements named after the parameters, each tag behind the token `]<]minimax[>[`."""

from __future__ import annotations

from omlx.dialect.tools.cursor import Cursor, NotACall
from omlx.dialect.tools.format import ToolFormat
from omlx.dialect.tools.toolbox import Toolbox
from omlx.request import ToolCall

_TOKEN = "]<]minimax[>["  # noqa: S105


def read(cursor: Cursor, toolbox: Toolbox) -> list[ToolCall]:
    cursor.literal(f"{_TOKEN}<tool_call>")
    calls: list[ToolCall] = []
    while True:
        cursor.blank()
        cursor.literal(_TOKEN)
        if cursor.one_of("</tool_call>", '<invoke name="') == "</tool_call>":
            if not calls:
                raise NotACall
            return calls
        name = cursor.until('">', at_most=200)
        arguments: dict[str, str] = {}
        while True:
            cursor.blank()
            cursor.literal(f"{_TOKEN}<")
            if cursor.maybe("/invoke>"):
                break
            key = cursor.until(">", at_most=200)
            arguments[key] = cursor.until(f"{_TOKEN}</{key}>")
        calls.append(toolbox.call_with_texts(name, arguments))


MINIMAX3 = ToolFormat("minimax-m3", read, (f"{_TOKEN}<tool_call>",), (_TOKEN,), closings=(f"{_TOKEN}</tool_call>",))
