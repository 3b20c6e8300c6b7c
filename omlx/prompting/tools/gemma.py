"""Gemma: `call:f{key:value}` between tokens (FunctionGemma, Gemma 4), and Python in a `tool_code` fence (Gemma 3)."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from omlx.messages.request import ToolCall
from omlx.prompting.tools import literals
from omlx.prompting.tools.cursor import MAX_NESTING, Cursor, NotACall
from omlx.prompting.tools.format import Reader, ToolFormat, Writer
from omlx.prompting.tools.objects import read_calls
from omlx.prompting.tools.offered import OfferedTools, typed
from omlx.prompting.tools.rules import OfferedTool, Rules


class _Marks(NamedTuple):
    opening: str
    closing: str
    quote: str


def _reader(*texts: str) -> Reader:
    marks = _Marks(*texts)

    def read(cursor: Cursor, offered_tools: OfferedTools) -> None:
        """One or more calls in a block."""
        cursor.literal(marks.opening)
        cursor.blank()
        cursor.maybe("call:")
        if cursor.next_is("{", "["):
            # JSON, as other families write it.
            read_calls(cursor, offered_tools, marks.closing)
            cursor.blank()
            cursor.maybe(marks.closing)
            return
        while True:
            if _PYTHON.match(cursor.text, cursor.position):
                cursor.keep(_python_call(cursor, offered_tools, marks))
                cursor.blank()
                cursor.maybe(marks.closing)
                return
            name = cursor.until("{", at_most=200).strip()
            cursor.position -= 1
            offered_tools.known(name)
            cursor.keep(offered_tools.call(name, _object(cursor, marks, 0)))
            cursor.blank()
            while cursor.maybe("}"):
                cursor.blank()
            if cursor.maybe(marks.closing):
                return
            if cursor.maybe(","):
                cursor.blank()
            if not cursor.maybe("call:"):
                if cursor.at_end:
                    cursor.wait()
                cursor.position = cursor.kept_end
                return

    return read


def _python_call(cursor: Cursor, offered_tools: OfferedTools, marks: _Marks) -> ToolCall:
    """`f(key=value)`, with Python's quotes or the family's."""
    start = cursor.position
    try:
        return offered_tools.call(*literals.read_call(cursor))
    except NotACall:
        cursor.position = start
    name = cursor.until("(")
    return offered_tools.call(name, _items(cursor, marks, ")", 0))


_PYTHON = re.compile(r"[\w.-]+\(")
_KEY = re.compile(r"[^:={}\[\],<]*")


def _object(cursor: Cursor, marks: _Marks, depth: int) -> dict[str, Any]:
    """`{key:value,…}`; some models write `=`, or leave the last brace out in front of the closing marker."""
    cursor.literal("{")
    return _items(cursor, marks, "}", depth)


def _items(cursor: Cursor, marks: _Marks, bracket: str, depth: int) -> dict[str, Any]:
    """The rest of an object that `bracket` ends."""
    items: dict[str, Any] = {}
    while True:
        cursor.blank()
        if cursor.maybe(bracket):
            return items
        if cursor.maybe(marks.quote):
            name = cursor.until(marks.quote)
        else:
            key = _KEY.match(cursor.text, cursor.position)
            assert key is not None
            if key.end() == len(cursor.text):
                raise cursor.undecided()
            name = key.group().strip().strip("\"'")
            cursor.position = key.end()
            if not name or len(name) > 200:
                raise NotACall
        cursor.blank()
        cursor.one_of(":", "=")
        items[name] = _value(cursor, marks, depth + 1)
        if _ends(cursor, marks, bracket):
            return items


def _ends(cursor: Cursor, marks: _Marks, bracket: str) -> bool:
    """Step over what follows a value; whether it was the last of its object or list."""
    cursor.blank()
    # A quote that nothing opened.
    while cursor.maybe(marks.quote):
        cursor.blank()
    if cursor.over() or cursor.next_is(marks.closing):
        return True
    return cursor.one_of(",", bracket) == bracket


def _value(cursor: Cursor, marks: _Marks, depth: int) -> Any:
    """Text between the family's quotes, an object, a list, or a bare number, boolean or word."""
    if depth > MAX_NESTING:
        raise NotACall
    cursor.blank()
    if cursor.maybe(marks.quote):
        return _quoted_text(cursor, marks)
    if cursor.at_end:
        raise cursor.undecided()
    match cursor.text[cursor.position]:
        case "{":
            return _object(cursor, marks, depth)
        case "[":
            cursor.position += 1
            items: list[Any] = []
            while True:
                cursor.blank()
                if cursor.maybe("]"):
                    return items
                items.append(_value(cursor, marks, depth + 1))
                if _ends(cursor, marks, "]"):
                    return items
        case '"' | "'":
            return literals.read_value(cursor)
    end = _BARE_END.search(cursor.text, cursor.position)
    closing = cursor.text.find(marks.closing, cursor.position, end.start() if end else len(cursor.text))
    if end is None and closing < 0:
        rest = cursor.to_end(marks.closing, marks.quote)
        if rest is None or not rest.strip():
            raise cursor.undecided()
        return typed(rest.strip(), None)
    stop = closing if closing >= 0 or end is None else end.start()
    bare = cursor.text[cursor.position : stop].replace(marks.quote, "").strip()
    cursor.position = stop
    return typed(bare, None)


_BARE_END = re.compile(r"[,}\]]")


def _quoted_text(cursor: Cursor, marks: _Marks) -> str:
    """Text whose opening quote is read. Where the closing one is missing, the marker of the call's end ends it."""
    quote = cursor.text.find(marks.quote, cursor.position)
    closing = cursor.text.find(marks.closing, cursor.position, quote if quote >= 0 else len(cursor.text))
    if quote < 0 and closing < 0:
        rest = cursor.to_end(marks.quote, marks.closing)
        if rest is None:
            raise cursor.undecided()
        return rest.rstrip().rstrip("}")
    if closing < 0:
        return cursor.until(marks.quote)
    text = cursor.text[cursor.position : closing]
    cursor.position = closing
    return text.rstrip().rstrip("}")


def _writer(opening: str, closing: str, quote: str) -> Writer:
    def write(rules: Rules) -> str:
        def item(tool: OfferedTool, key: str, schema: Any) -> str:
            return f"{rules.text(key + ':')} ({rules.quoted(tool, schema, quote)})"

        def call(tool: OfferedTool) -> str:
            # Its templates sort them.
            arguments = sorted(tool.properties, key=lambda parameter: parameter.name.lower())
            items = [(item(tool, key, schema), required) for key, schema, required in arguments]
            head, end = rules.text(f"{opening}call:{tool.name}{{"), rules.text(f"}}{closing}")
            return f"{head} {rules.separated(items, ',')} {end}" if items else f"{head} {end}"

        return rules.repeated(rules.each_way(call))

    return write


def read_tool_code(cursor: Cursor, offered_tools: OfferedTools) -> None:
    """A fence with calls in Python, each perhaps within `print(…)`."""
    cursor.literal("```tool_code")
    while True:
        cursor.blank()
        if cursor.kept and cursor.maybe("```"):
            return
        printed = cursor.maybe("print(")
        cursor.blank()
        if cursor.maybe("["):
            cursor.position -= 1
            for call in literals.read_calls(cursor):
                cursor.keep(_offered(offered_tools, *call))
        else:
            cursor.keep(_offered(offered_tools, *literals.read_call(cursor)))
        cursor.blank()
        if printed:
            cursor.literal(")")


def _offered(offered_tools: OfferedTools, name: str, arguments: dict[str, Any]) -> ToolCall:
    """A call of a tool that was offered: other code in such a fence is an example."""
    call = offered_tools.call(name, arguments)
    if call.name not in offered_tools.names:
        raise NotACall
    return call


FORMATS = (
    ToolFormat(
        "function-gemma",
        _reader("<start_function_call>", "<end_function_call>", "<escape>"),
        ("<start_function_call>",),
        ("<start_function_call>",),
        closings=("<end_function_call>",),
        strays=("<end_function_call>",),
        orphans=("<escape>",),
        write=_writer("<start_function_call>", "<end_function_call>", "<escape>"),
    ),
    ToolFormat(
        "gemma4",
        _reader("<|tool_call>", "<tool_call|>", '<|"|>'),
        ("<|tool_call>",),
        ("<|tool_call>",),
        closings=("<tool_call|>",),
        strays=("<tool_call|>", "<|tool_response>"),
        orphans=('<|"|>',),
        write=_writer("<|tool_call>", "<tool_call|>", '<|"|>'),
    ),
    ToolFormat("tool-code", read_tool_code, ("```tool_code",), ("tool_code", "<start_of_turn>"), closings=("```",)),
)
