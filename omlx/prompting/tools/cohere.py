"""Cohere's Command models: JSON with `tool_name` between tokens (R7B, A), or below `Action:` in a fence (R, R+)."""

from __future__ import annotations

import json

from omlx.prompting.tools.cursor import Cursor
from omlx.prompting.tools.format import ToolFormat
from omlx.prompting.tools.json_tags import tagged
from omlx.prompting.tools.objects import read_calls
from omlx.prompting.tools.offered import OfferedTools
from omlx.prompting.tools.rules import OfferedTool, Rules, json_call


def read_action(cursor: Cursor, offered_tools: OfferedTools) -> None:
    cursor.literal("Action:")
    cursor.blank()
    if cursor.maybe("```"):
        cursor.maybe("json")
    cursor.blank()
    read_calls(cursor, offered_tools, "```")
    cursor.blank()
    while cursor.maybe("```"):
        cursor.blank()


def write(rules: Rules) -> str:
    def call(tool: OfferedTool) -> str:
        head = rules.text('{"tool_call_id": "')
        name = rules.text(f'", "tool_name": {json.dumps(tool.name)}, "parameters": ')
        return f"{head} /[0-9]{{1,3}}/ {name} {rules.json(tool.schema)} {rules.text('}')}"

    calls = rules.repeated(rules.each(call), ",\n    ")
    return " ".join((rules.text("<|START_ACTION|>[\n    "), calls, rules.text("\n]<|END_ACTION|>")))


def write_action(rules: Rules) -> str:
    calls = rules.repeated(rules.each(lambda tool: json_call(rules, tool, "tool_name", "parameters")), ",\n")
    return " ".join((rules.text("Action:```json\n[\n"), calls, rules.text("\n]```")))


FORMATS = (
    ToolFormat(
        "cohere",
        tagged("<|START_ACTION|>", "<|END_ACTION|>"),
        ("<|START_ACTION|>",),
        ("<|START_ACTION|>",),
        closings=("<|END_ACTION|>",),
        strays=("<|END_ACTION|>",),
        write=write,
    ),
    ToolFormat(
        "command-r", read_action, ("Action:",), ("Action:", "directly_answer"), closings=("```",), write=write_action
    ),
)
