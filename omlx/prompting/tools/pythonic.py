"""Calls written in Python: LFM2 between tokens, Llama 4 as a bare list, OLMo 3 line by line."""

from __future__ import annotations

from omlx.prompting.tools import literals
from omlx.prompting.tools.cursor import Cursor, NotACall
from omlx.prompting.tools.format import Reader, ToolFormat, Writer
from omlx.prompting.tools.objects import read_calls
from omlx.prompting.tools.offered import OfferedTools
from omlx.prompting.tools.rules import OfferedTool, Rules, json_call


def read_list(cursor: Cursor, offered_tools: OfferedTools) -> None:
    """`[f(a=1), g()]`"""
    for name, arguments in literals.read_calls(cursor):
        cursor.keep(offered_tools.call(name, arguments))


def _between(opening: str, closing: str) -> Reader:
    def read(cursor: Cursor, offered_tools: OfferedTools) -> None:
        cursor.literal(opening)
        cursor.blank()
        start = cursor.position
        if not cursor.at_end and cursor.text[start] not in "[{":
            cursor.keep(offered_tools.call(*literals.read_call(cursor)))
            cursor.blank()
            cursor.maybe(closing)
            return
        try:
            read_list(cursor, offered_tools)
        except NotACall:
            if cursor.kept or cursor.cut:
                raise
            # LFM2 can be told to write JSON instead.
            cursor.position = start
            read_calls(cursor, offered_tools, closing)
        cursor.blank()
        cursor.maybe(closing)

    return read


def read_lines(cursor: Cursor, offered_tools: OfferedTools) -> None:
    """`<function_calls>`, one call a line, `</function_calls>`."""
    cursor.literal("<function_calls>")
    while True:
        cursor.blank()
        if cursor.maybe("</function_calls>"):
            return
        if cursor.at_end and cursor.kept:
            cursor.wait()
            return
        cursor.keep(offered_tools.call(*literals.read_call(cursor)))


def write_call(rules: Rules, tool: OfferedTool) -> str:
    """`f(a="x", b=2)`: JSON values are read as Python's."""
    items = [
        (f"{rules.text(key + '=')} {rules.property(tool, schema)}", required)
        for key, schema, required in tool.properties
    ]
    inner = f" {rules.separated(items, ', ')} " if items else " "
    return f"{rules.text(tool.name + '(')}{inner}{rules.text(')')}"


def _writer(opening: str, closing: str, between: str = ", ") -> Writer:
    def write(rules: Rules) -> str:
        calls = rules.repeated(rules.each_way(lambda tool: write_call(rules, tool)), between)
        return " ".join((rules.text(opening), calls, rules.text(closing)))

    return write


def _write_llama4(rules: Rules) -> str:
    call = rules.each(lambda tool: json_call(rules, tool, arguments_key="parameters"))
    return " ".join((rules.text("<|python_start|>"), call, rules.text("<|python_end|>")))


FORMATS = (
    ToolFormat(
        "lfm2",
        _between("<|tool_call_start|>", "<|tool_call_end|>"),
        ("<|tool_call_start|>",),
        ("<|tool_call_start|>", "<|tool_list_start|>"),
        closings=("<|tool_call_end|>",),
        strays=("<|tool_call_end|>",),
        write=_writer("<|tool_call_start|>[", "]<|tool_call_end|>"),
    ),
    ToolFormat(
        "llama4",
        _between("<|python_start|>", "<|python_end|>"),
        ("<|python_start|>",),
        ("<|python_start|>",),
        closings=("<|python_end|>",),
        strays=("<|python_end|>",),
        write=_write_llama4,
    ),
    ToolFormat(
        "olmo3",
        read_lines,
        ("<function_calls>",),
        ("<function_calls>",),
        closings=("</function_calls>",),
        write=_writer("<function_calls>", "</function_calls>", "\n"),
    ),
)
PYTHON_LIST = ToolFormat("pythonic", read_list, ("[",), bare=True, closings=("]",))
