"""GLM: `<tool_call>f<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>` since 4.5; before, the name and JSON."""

from __future__ import annotations

from omlx.dialect.tools.cursor import Cursor
from omlx.dialect.tools.format import Reader, ToolFormat
from omlx.dialect.tools.toolbox import Toolbox
from omlx.request import ToolCall


def _reader(prefix: str) -> Reader:
    def read(cursor: Cursor, toolbox: Toolbox) -> list[ToolCall]:
        cursor.literal(f"<{prefix}tool_call>")
        cursor.blank()
        name = cursor.name()
        arguments: dict[str, str] = {}
        while True:
            cursor.blank()
            if cursor.one_of(f"</{prefix}tool_call>", f"<{prefix}arg_key>") != f"<{prefix}arg_key>":
                return [toolbox.call_with_texts(name, arguments)]
            key = cursor.until(f"</{prefix}arg_key>", at_most=300).strip()
            cursor.blank()
            cursor.literal(f"<{prefix}arg_value>")
            arguments[key] = cursor.until(f"</{prefix}arg_value>")

    return read


def read_bare(cursor: Cursor, toolbox: Toolbox) -> list[ToolCall]:
    """`name`, a line break, the arguments as JSON."""
    name = cursor.name()
    cursor.literal("\n")
    toolbox.known(name)
    return [toolbox.call(name, cursor.json())]


GLM = ToolFormat("glm", _reader(""), ("<tool_call>",), ("<arg_key>",), closings=("</tool_call>",))
LONGCAT = ToolFormat(
    "longcat",
    _reader("longcat_"),
    ("<longcat_tool_call>",),
    ("<longcat_tool_call>",),
    closings=("</longcat_tool_call>",),
)
GLM4 = ToolFormat("glm4", read_bare, (), ("<|observation|>",), bare=True, closings=("}",))
"""Its openings are the names of the tools."""
