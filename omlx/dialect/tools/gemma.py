"""Gemma: `call:f{key:value}` between tokens (FunctionGemma, Gemma 4), and Python in a `tool_code` fence (Gemma 3)."""

from __future__ import annotations

from typing import Any

from omlx.dialect.tools import literals
from omlx.dialect.tools.cursor import MAX_NESTING, Cursor, NotACall
from omlx.dialect.tools.format import Reader, ToolFormat, Writer
from omlx.dialect.tools.parameters import schema_types
from omlx.dialect.tools.rules import Offered, Rules
from omlx.dialect.tools.toolbox import Toolbox, typed
from omlx.request import ToolCall


def _reader(opening: str, closing: str, quote: str) -> Reader:
    def read(cursor: Cursor, toolbox: Toolbox) -> list[ToolCall]:
        cursor.literal(opening)
        cursor.blank()
        cursor.literal("call:")
        name = cursor.until("{", at_most=200).strip()
        cursor.position -= 1
        arguments = _object(cursor, quote, 0)
        cursor.blank()
        cursor.maybe(closing)
        return [toolbox.call(name, arguments)]

    return read


def _object(cursor: Cursor, quote: str, depth: int) -> dict[str, Any]:
    cursor.literal("{")
    items: dict[str, Any] = {}
    while True:
        cursor.blank()
        if cursor.maybe("}"):
            return items
        if cursor.maybe(quote):
            name = cursor.until(quote)
            cursor.blank()
            cursor.literal(":")
        else:
            head = cursor.until(":", at_most=200)
            name = head.strip().strip('"')
            if not name or any(mark in name for mark in "{}[],"):
                raise NotACall
        items[name] = _value(cursor, quote, depth + 1)
        cursor.blank()
        if cursor.one_of(",", "}") == "}":
            return items


def _value(cursor: Cursor, quote: str, depth: int) -> Any:
    """Text between the family's quotes, an object, a list, or a bare number, boolean or word."""
    if depth > MAX_NESTING:
        raise NotACall
    cursor.blank()
    if cursor.maybe(quote):
        return cursor.until(quote)
    if cursor.at_end:
        raise cursor.undecided()
    match cursor.text[cursor.position]:
        case "{":
            return _object(cursor, quote, depth)
        case "[":
            cursor.position += 1
            items: list[Any] = []
            while True:
                cursor.blank()
                if cursor.maybe("]"):
                    return items
                items.append(_value(cursor, quote, depth + 1))
                cursor.blank()
                if cursor.one_of(",", "]") == "]":
                    return items
        case '"' | "'":
            return literals.read_value(cursor)
    end = next((at for at in range(cursor.position, len(cursor.text)) if cursor.text[at] in ",}]"), None)
    if end is None:
        raise cursor.undecided()
    bare = cursor.text[cursor.position : end].strip()
    cursor.position = end
    return typed(bare, None)


def _writer(opening: str, closing: str, quote: str) -> Writer:
    def write(rules: Rules) -> str:
        def item(tool: Offered, key: str, schema: Any) -> str:
            types = schema_types(schema, tool.schema)
            text = f"{rules.text(quote)} {rules.value(tool, schema, quote)}"
            return f"{rules.text(key + ':')} {text if not types or 'string' in types else rules.property(tool, schema)}"

        def call(tool: Offered) -> str:
            items = [(item(tool, key, schema), required) for key, schema, required in tool.properties]
            head, end = rules.text(f"{opening}call:{tool.name}{{"), rules.text(f"}}{closing}")
            return f"{head} {rules.separated(items, ',')} {end}" if items else f"{head} {end}"

        return rules.repeated(rules.each(call))

    return write


def read_tool_code(cursor: Cursor, toolbox: Toolbox) -> list[ToolCall]:
    """A fence with calls in Python, each perhaps within `print(…)`."""
    cursor.literal("```tool_code")
    calls: list[ToolCall] = []
    while True:
        cursor.blank()
        if calls and cursor.maybe("```"):
            return calls
        printed = cursor.maybe("print(")
        cursor.blank()
        if cursor.maybe("["):
            cursor.position -= 1
            calls += [toolbox.call(*call) for call in literals.read_calls(cursor)]
        else:
            calls.append(toolbox.call(*literals.read_call(cursor)))
        cursor.blank()
        if printed:
            cursor.literal(")")


FORMATS = (
    ToolFormat(
        "function-gemma",
        _reader("<start_function_call>", "<end_function_call>", "<escape>"),
        ("<start_function_call>",),
        ("<start_function_call>",),
        closings=("<end_function_call>",),
        write=_writer("<start_function_call>", "<end_function_call>", "<escape>"),
    ),
    ToolFormat(
        "gemma4",
        _reader("<|tool_call>", "<tool_call|>", '<|"|>'),
        ("<|tool_call>",),
        ("<|tool_call>",),
        closings=("<tool_call|>",),
        write=_writer("<|tool_call>", "<tool_call|>", '<|"|>'),
    ),
    ToolFormat("tool-code", read_tool_code, ("```tool_code",), ("tool_code", "<start_of_turn>"), closings=("```",)),
)
