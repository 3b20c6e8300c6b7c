"""Solar: identifier, name and JSON of each call between tokens."""

from __future__ import annotations

from omlx.dialect.tools.cursor import Cursor
from omlx.dialect.tools.format import ToolFormat
from omlx.dialect.tools.toolbox import Toolbox
from omlx.request import ToolCall

_ALL, _BEGIN, _NAME, _ARGUMENTS, _END = (
    "<|tool_calls|>", "<|tool_call:begin|>", "<|tool_call:name|>", "<|tool_call:args|>", "<|tool_call:end|>"
)  # fmt: skip


def read(cursor: Cursor, toolbox: Toolbox) -> list[ToolCall]:
    if cursor.one_of(_ALL, _BEGIN) == _ALL:
        cursor.blank()
        cursor.literal(_BEGIN)
    calls: list[ToolCall] = []
    while True:
        cursor.until(_NAME, at_most=200)
        name = cursor.until(_ARGUMENTS, at_most=200)
        cursor.blank()
        calls.append(toolbox.call(name, cursor.json()))
        cursor.blank()
        cursor.maybe(_END)
        cursor.blank()
        if not cursor.maybe(_BEGIN):
            return calls


SOLAR = ToolFormat("solar", read, (_ALL, _BEGIN), (_BEGIN,), closings=(_END,))
