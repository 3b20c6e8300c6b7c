"""Llama 3: JSON with `parameters` (bare, see fallback.py, or behind `<|python_tag|>`), and code for its interpreter."""

from __future__ import annotations

from omlx.prompting.tools import literals
from omlx.prompting.tools.cursor import Cursor, NotACall
from omlx.prompting.tools.fallback import read_json_sequence
from omlx.prompting.tools.format import ToolFormat
from omlx.prompting.tools.objects import read_arguments
from omlx.prompting.tools.offered import OfferedTools
from omlx.prompting.tools.rules import Rules, bare_call

_INTERPRETERS = ("python", "ipython", "code_interpreter")


def read_python_tag(cursor: Cursor, offered_tools: OfferedTools) -> None:
    """JSON, a built-in tool's `name.call(query="…")`, or Python for a tool that runs it."""
    cursor.literal("<|python_tag|>")
    cursor.blank()
    if cursor.at_end:
        raise cursor.undecided()
    start = cursor.position
    if cursor.text[start] in "{[":
        read_json_sequence(cursor, offered_tools)
        return
    interpreter = next((name for name in _INTERPRETERS if name in offered_tools.names), None)
    try:
        name, arguments = literals.read_call(cursor)
        if interpreter is None or name.removesuffix(".call") in offered_tools.names:
            cursor.keep(offered_tools.call(name.removesuffix(".call"), arguments))
            return
    except NotACall:
        cursor.cut = cursor.cut and interpreter is None
    cursor.position = start
    if interpreter is None:
        raise NotACall
    cursor.keep(offered_tools.call(interpreter, {offered_tools.single_parameter(interpreter) or "code": cursor.rest()}))


def read_function_tag(cursor: Cursor, offered_tools: OfferedTools) -> None:
    """`<function=name>{…}</function>`, the custom format of Llama 3.1."""
    cursor.literal("<function=")
    name = cursor.until(">", at_most=200)
    cursor.blank()
    cursor.keep(offered_tools.call(name, read_arguments(cursor, "</function>")))
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
