"""Mistral: `[TOOL_CALLS][{"name":…,"arguments":…}]`, and from tokenizer v11 on `[TOOL_CALLS]name[ARGS]{…}`."""

from __future__ import annotations

from omlx.prompting.tools.cursor import Cursor
from omlx.prompting.tools.format import ToolFormat
from omlx.prompting.tools.objects import read_arguments, read_calls
from omlx.prompting.tools.offered import OfferedTools
from omlx.prompting.tools.rules import OfferedTool, Rules, json_call


def read(cursor: Cursor, offered_tools: OfferedTools) -> None:
    cursor.literal("[TOOL_CALLS]")
    cursor.blank()
    if cursor.at_end:
        raise cursor.undecided()
    if cursor.text[cursor.position] in "[{" and not cursor.next_is("[TOOL_CALLS]"):
        read_calls(cursor, offered_tools, "[TOOL_CALLS]")
    else:
        name = cursor.name()
        cursor.blank()
        if cursor.maybe("[CALL_ID]"):
            cursor.name()
        while cursor.maybe("[ARGS]"):
            cursor.blank()
        cursor.blank()
        cursor.keep(offered_tools.call(name, read_arguments(cursor, "[TOOL_CALLS]", "[/TOOL_CALLS]")))
    end = cursor.position
    cursor.blank()
    if not cursor.maybe("[/TOOL_CALLS]"):
        cursor.position = end


def write(rules: Rules) -> str:
    if rules.knows("[ARGS]"):
        # Tokenizer v11 writes an id between name and arguments, v13 does not.
        identity = f"({rules.text('[CALL_ID]')} /[a-zA-Z0-9]{{9}}/)?" if rules.knows("[CALL_ID]") else ""

        def call(tool: OfferedTool) -> str:
            name, arguments = rules.text(f"[TOOL_CALLS]{tool.name}"), rules.json(tool.schema)
            return f"{name} {identity} {rules.text('[ARGS]')} {arguments}"

        return rules.repeated(rules.each(call))
    # Some versions write an id of their own.
    identity = r'(", \"id\": \"" /[a-zA-Z0-9]{9}/ "\"")? "}"'
    calls = rules.repeated(rules.each(lambda tool: f"{json_call(rules, tool, closing='')} {identity}"), ", ")
    return " ".join((rules.text("[TOOL_CALLS]"), f"{rules.text(' ')}?", rules.text("["), calls, rules.text("]")))


MISTRAL = ToolFormat(
    "mistral", read, ("[TOOL_CALLS]",), ("[TOOL_CALLS]",), closings=("]", "}"), strays=("[/TOOL_CALLS]",), write=write
)
