"""GLM: `<tool_call>f<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>` since 4.5; before, the name and JSON."""

from __future__ import annotations

from omlx.dialect.tools.cursor import Cursor
from omlx.dialect.tools.format import Reader, ToolFormat, Writer
from omlx.dialect.tools.rules import Offered, Rules
from omlx.dialect.tools.toolbox import Toolbox
from omlx.request import ToolCall


def _reader(prefix: str, suffix: str = "") -> Reader:
    """One call. `prefix` and `suffix` are what a family adds to the names of the elements."""

    def tag(name: str) -> str:
        return f"{prefix}{name}{suffix}>"

    def read(cursor: Cursor, toolbox: Toolbox) -> list[ToolCall]:
        cursor.literal("<" + tag("tool_call"))
        cursor.blank()
        name = cursor.name()
        cursor.maybe("<" + tag("tool_sep"))
        arguments: dict[str, str] = {}
        while True:
            cursor.blank()
            if cursor.one_of("</" + tag("tool_call"), "<" + tag("arg_key")).startswith("</"):
                return [toolbox.call_with_texts(name, arguments)]
            key = cursor.until("</" + tag("arg_key"), at_most=300).strip()
            cursor.blank()
            cursor.literal("<" + tag("arg_value"))
            arguments[key] = cursor.until("</" + tag("arg_value"))

    return read


def _read_hunyuan3(cursor: Cursor, toolbox: Toolbox) -> list[ToolCall]:
    """Hunyuan 3 puts an element around all calls and a suffix on every name."""
    one = _reader("", ":opensource")
    cursor.literal("<tool_calls:opensource>")
    calls: list[ToolCall] = []
    while True:
        cursor.blank()
        if calls and cursor.maybe("</tool_calls:opensource>"):
            return calls
        calls += one(cursor, toolbox)


def read_bare(cursor: Cursor, toolbox: Toolbox) -> list[ToolCall]:
    """`name`, a line break, the arguments as JSON."""
    name = cursor.name()
    cursor.literal("\n")
    toolbox.known(name)
    return [toolbox.call(name, cursor.json())]


def _writer(prefix: str) -> Writer:
    def write(rules: Rules) -> str:
        def call(tool: Offered) -> str:
            parts = [rules.text(f"<{prefix}tool_call>{tool.name}\n")]
            for key, schema, required in tool.properties:
                head = rules.text(f"<{prefix}arg_key>{key}</{prefix}arg_key>\n<{prefix}arg_value>")
                value = rules.value(tool, schema, f"</{prefix}arg_value>")
                parts.append(rules.rule(f"{head} {value} {rules.text(_LINE)}") + ("" if required else "?"))
            return " ".join([*parts, rules.text(f"</{prefix}tool_call>")])

        return rules.repeated(rules.each(call))

    return write


def write_bare(rules: Rules) -> str:
    return rules.each(lambda tool: f"{rules.text(tool.name + _LINE)} {rules.json(tool.schema)}")


_LINE = "\n"
GLM = ToolFormat("glm", _reader(""), ("<tool_call>",), ("<arg_key>",), closings=("</tool_call>",), write=_writer(""))
LONGCAT = ToolFormat(
    "longcat",
    _reader("longcat_"),
    ("<longcat_tool_call>",),
    ("<longcat_tool_call>",),
    closings=("</longcat_tool_call>",),
    write=_writer("longcat_"),
)
HUNYUAN3 = ToolFormat(
    "hunyuan3",
    _read_hunyuan3,
    ("<tool_calls:opensource>",),
    ("<tool_calls:opensource>",),
    closings=("</tool_calls:opensource>",),
)
GLM4 = ToolFormat("glm4", read_bare, (), ("<|observation|>",), bare=True, closings=("}",), write=write_bare)
"""Its openings are the names of the tools."""
