"""Cohere's Command models: JSON with `tool_name` between tokens (R7B, A), or below `Action:` in a fence (R, R+)."""

from __future__ import annotations

from omlx.dialect.tools.cursor import Cursor
from omlx.dialect.tools.format import ToolFormat
from omlx.dialect.tools.json_tags import tagged
from omlx.dialect.tools.toolbox import Toolbox, calls_from_json
from omlx.request import ToolCall


def read_action(cursor: Cursor, toolbox: Toolbox) -> list[ToolCall]:
    cursor.literal("Action:")
    cursor.blank()
    cursor.literal("```json")
    cursor.blank()
    calls = calls_from_json(cursor.json(), toolbox)
    cursor.blank()
    cursor.maybe("```")
    return calls


FORMATS = (
    ToolFormat(
        "cohere",
        tagged("<|START_ACTION|>", "<|END_ACTION|>"),
        ("<|START_ACTION|>",),
        ("<|START_ACTION|>",),
        closings=("<|END_ACTION|>",),
    ),
    ToolFormat("command-r", read_action, ("Action:",), ("Action:", "directly_answer"), closings=("```",)),
)
