"""Functionary 3.2: `>>>` and a recipient on each part of the output; `all` is the user, other names are tools.

The prompt ends with `>>>`, so that output begins with the first recipient.
"""

from __future__ import annotations

from omlx.prompting.tools.cursor import Cursor
from omlx.prompting.tools.format import ToolFormat
from omlx.prompting.tools.objects import read_arguments
from omlx.prompting.tools.offered import OfferedTools
from omlx.prompting.tools.rules import Rules

_NEXT = ">>>"


def read(cursor: Cursor, offered_tools: OfferedTools) -> None:
    """A recipient on a line of its own, and below it its arguments as JSON, or code for `python`."""
    cursor.maybe(_NEXT)
    name = cursor.name()
    cursor.literal("\n")
    if name == "all":
        return
    cursor.blank()
    if name == "python" and not cursor.at_end and cursor.text[cursor.position] != "{":
        cursor.keep(offered_tools.call(name, {offered_tools.single_parameter(name) or "code": cursor.rest()}))
    else:
        cursor.keep(offered_tools.call(name, read_arguments(cursor, _NEXT)))


def write(rules: Rules) -> str:
    calls = rules.each(lambda tool: f"{rules.text(tool.name + _LINE)} {rules.json(tool.schema)}")
    return rules.repeated(calls, _NEXT)


_LINE = "\n"
_MARKS = (">>>${recipient}", ">>>all")
FUNCTIONARY = ToolFormat("functionary", read, (_NEXT,), _MARKS, starts=True, closings=("}",), write=write)
