"""DeepSeek V3, R1 and V3.1: calls between tokens with full-width bars."""

from __future__ import annotations

from omlx.prompting.tools.cursor import Cursor, NotACall
from omlx.prompting.tools.format import ToolFormat
from omlx.prompting.tools.objects import read_arguments
from omlx.prompting.tools.offered import OfferedTools
from omlx.prompting.tools.rules import OfferedTool, Rules

_ALL, _ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_ONE, _ONE_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
_SEPARATOR = "<｜tool▁sep｜>"


def read(cursor: Cursor, offered_tools: OfferedTools) -> None:
    """Calls, with or without the tokens around all of them."""
    while True:
        cursor.blank()
        if cursor.maybe(_ONE):
            _call(cursor, offered_tools)
        elif cursor.maybe(_ALL_END):
            return
        elif not cursor.maybe(_ALL):
            if cursor.kept:
                return
            raise cursor.undecided() if cursor.at_end else NotACall()


def _call(cursor: Cursor, offered_tools: OfferedTools) -> None:
    while cursor.maybe(_ONE):
        cursor.blank()
    first = cursor.until(_SEPARATOR, at_most=200).strip()
    if first == "function":
        # V3 and R1: the name stands on its own line, the arguments in a code fence.
        first = cursor.until("\n", at_most=200).strip()
    cursor.blank()
    fenced = cursor.maybe("```json") or cursor.maybe("```")
    cursor.blank()
    call = offered_tools.call(first, read_arguments(cursor, "```", _ONE_END, _ALL_END))
    cursor.keep(call)
    cursor.blank()
    if fenced:
        cursor.maybe("```")
        cursor.blank()
    if cursor.maybe(_ONE_END):
        cursor.kept_end = cursor.position


def write(rules: Rules) -> str:
    """Either form: the model knows its own."""

    def call(tool: OfferedTool) -> str:
        arguments = rules.json(tool.schema)
        fenced = f"{rules.text(f'function{_SEPARATOR}{tool.name}' + _FENCE)} {arguments} {rules.text(_FENCE_END)}"
        return f"{fenced} | {rules.text(tool.name + _SEPARATOR)} {arguments}"

    one = " ".join((rules.text(_ONE), rules.each(call), rules.text(_ONE_END)))
    return " ".join((rules.text(_ALL), rules.repeated(one), rules.text(_ALL_END)))


_FENCE, _FENCE_END = "\n```json\n", "\n```"
DEEPSEEK = ToolFormat(
    "deepseek",
    read,
    (_ALL, _ONE),
    (_ALL, _ONE),
    closings=(_ONE_END, _ALL_END),
    strays=(_ONE_END, _ALL_END),
    write=write,
)
