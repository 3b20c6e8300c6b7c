"""Solar: identifier, name and JSON of each call between tokens."""

from __future__ import annotations

from omlx.prompting.tools.cursor import Cursor, NotACall
from omlx.prompting.tools.format import ToolFormat
from omlx.prompting.tools.objects import read_arguments
from omlx.prompting.tools.offered import OfferedTools
from omlx.prompting.tools.rules import OfferedTool, Rules

_ALL, _BEGIN, _NAME, _ARGUMENTS, _END = (
    "<|tool_calls|>", "<|tool_call:begin|>", "<|tool_call:name|>", "<|tool_call:args|>", "<|tool_call:end|>"
)  # fmt: skip


def read(cursor: Cursor, offered_tools: OfferedTools) -> None:
    while True:
        cursor.blank()
        if cursor.maybe(_ALL):
            continue
        if cursor.maybe(_BEGIN):
            while cursor.maybe(_BEGIN):
                cursor.blank()
            cursor.until(_NAME, at_most=200)
            name = cursor.until(_ARGUMENTS, at_most=200)
            cursor.blank()
            cursor.keep(offered_tools.call(name, read_arguments(cursor, _END)))
            cursor.blank()
            if cursor.maybe(_END):
                cursor.kept_end = cursor.position
        elif cursor.kept:
            return
        else:
            raise cursor.undecided() if cursor.at_end else NotACall()


def write(rules: Rules) -> str:
    def call(tool: OfferedTool) -> str:
        head = f"{rules.text(_BEGIN)} /[a-zA-Z0-9_]{{1,40}}/ {rules.text(_NAME + tool.name + _ARGUMENTS)}"
        return f"{head} {rules.json(tool.schema)} {rules.text(_END)}"

    return f"{rules.text(_ALL)} {rules.repeated(rules.each(call))}"


SOLAR = ToolFormat(
    "solar",
    read,
    (_ALL, _BEGIN),
    (_BEGIN,),
    closings=(_END,),
    strays=(_END, "<|calls|>", "<|begin|>"),
    write=write,
)
