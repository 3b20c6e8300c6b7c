"""Llama 3: JSON with `parameters` (bare, see fallback.py, or behind `<|python_tag|>`), and code for its interpreter."""

from __future__ import annotations

from omlx.dialect.tools import literals
from omlx.dialect.tools.cursor import Cursor, NotACall
from omlx.dialect.tools.fallback import read_json_sequence
from omlx.dialect.tools.format import ToolFormat
from omlx.dialect.tools.objects import read_arguments
from omlx.dialect.tools.rules import Rules, bare_call
from omlx.dialect.tools.toolbox import Toolbox

_INTERPRETERS = ("python", "ipython", "code_interpreter")


def read_python_tag(cursor: Cursor, toolbox: Toolbox) -> None:
    """JSON, a built-in tool's `name.call(query="…")`, or Python for a tool that runs it."""
    cursor.literal("<|python_tag|>")
    cursor.blank()
    if cursor.at_end:
        raise cursor.undecided()
    start = cursor.position
    if cursor.text[start] in "{[":
        read_json_sequence(cursor, toolbox)
        return
    interpreter = next((name for name in _INTERPRETERS if name in toolbox.names), None)
    try:
        name, arguments = literals.read_call(cursor)
        if interpreter is None or name.removesuffix(".call") in toolbox.names:
            cursor.keep(toolbox.call(name.removesuffix(".call"), arguments))
            return
    except NotACall:
        cursor.cut = cursor.cut and interpreter is None
    cursor.position = start
    if interpreter is None:
        raise NotACall
    cursor.keep(toolbox.call(interpreter, {toolbox.single_parameter(interpreter) or "code": cursor.rest()}))


def read_function_tag(cursor: Cursor, toolbox: Toolbox) -> None:
    """`<function=name>{…}</function>`, the custom format of Llama 3.1."""
    cursor.literal("<function=")
    name = cursor.until(">", at_most=200)
    cursor.blank()
    cursor.keep(toolbox.call(name, read_arguments(cursor, "</function>")))
    cursor.blank()
    cursor.maybe("</function>")


def write(rules: Rules) -> str:
    """One call, as the templates tell the model to write it."""
    return bare_call(rules, "parameters")


PYTHON_TAG = ToolFormat(
    "llama", read_python_tag, ("<|python_tag|>",), ("<|python_tag|>",), closings=("}", ")"), write=write
)
FUNCTION_TAG = ToolFormat(
    "llama-function", read_function_tag, ("<function=",), ("<function=",), closings=("</function>",)
)
