"""Llama 3: JSON with `parameters` (bare, see fallback.py, or behind `<|python_tag|>`), and code for its interpreter."""

from __future__ import annotations

from omlx.dialect.tools import literals
from omlx.dialect.tools.cursor import Cursor, NotACall
from omlx.dialect.tools.fallback import read_json_sequence
from omlx.dialect.tools.format import ToolFormat
from omlx.dialect.tools.rules import Rules, bare_call
from omlx.dialect.tools.toolbox import Toolbox
from omlx.request import ToolCall

_INTERPRETERS = ("python", "ipython", "code_interpreter")


def read_python_tag(cursor: Cursor, toolbox: Toolbox) -> list[ToolCall]:
    """JSON, a built-in tool's `name.call(query="…")`, or Python for a tool that runs it."""
    cursor.literal("<|python_tag|>")
    cursor.blank()
    if cursor.at_end:
        raise cursor.undecided()
    start = cursor.position
    if cursor.text[start] in "{[":
        return read_json_sequence(cursor, toolbox)
    try:
        name, arguments = literals.read_call(cursor)
        return [toolbox.call(name.removesuffix(".call"), arguments)]
    except NotACall:
        cursor.position = start
    interpreter = next((name for name in _INTERPRETERS if name in toolbox.names), None)
    if interpreter is None:
        raise NotACall
    return [toolbox.call(interpreter, {toolbox.single_parameter(interpreter) or "code": cursor.rest()})]


def read_function_tag(cursor: Cursor, toolbox: Toolbox) -> list[ToolCall]:
    """`<function=name>{…}</function>`, the custom format of Llama 3.1."""
    cursor.literal("<function=")
    name = cursor.until(">", at_most=200)
    cursor.blank()
    arguments = cursor.json()
    cursor.blank()
    cursor.maybe("</function>")
    return [toolbox.call(name, arguments)]


def write(rules: Rules) -> str:
    """One call, as the templates tell the model to write it."""
    return bare_call(rules, "parameters")


PYTHON_TAG = ToolFormat(
    "llama", read_python_tag, ("<|python_tag|>",), ("<|python_tag|>",), closings=("}", ")"), write=write
)
FUNCTION_TAG = ToolFormat(
    "llama-function", read_function_tag, ("<function=",), ("<function=",), closings=("</function>",)
)
