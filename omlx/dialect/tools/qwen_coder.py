"""Qwen3-Coder, Nemotron 3, Seed-OSS: `<tool_call><function=f><parameter=k>text</parameter></function></tool_call>`."""

from __future__ import annotations

from omlx.dialect.tools.cursor import Cursor
from omlx.dialect.tools.format import ToolFormat
from omlx.dialect.tools.rules import Offered, Rules
from omlx.dialect.tools.toolbox import Toolbox
from omlx.request import ToolCall


def read(cursor: Cursor, toolbox: Toolbox) -> list[ToolCall]:
    """One or more functions; the outer tag is sometimes left out."""
    tag = cursor.one_of("<tool_call>", "<seed:tool_call>", "<function=")
    closing = "" if tag == "<function=" else tag.replace("<", "</")
    if closing:
        cursor.blank()
        cursor.literal("<function=")
    calls = [_function(cursor, toolbox)]
    while closing:
        cursor.blank()
        if cursor.at_end:
            cursor.maybe(closing)
            break
        if cursor.maybe(closing):
            break
        cursor.literal("<function=")
        calls.append(_function(cursor, toolbox))
    return calls


def _function(cursor: Cursor, toolbox: Toolbox) -> ToolCall:
    name = cursor.until(">", at_most=200)
    arguments: dict[str, str] = {}
    while True:
        cursor.blank()
        if cursor.one_of("</function>", "<parameter=") == "</function>":
            return toolbox.call_with_texts(name, arguments)
        key = cursor.until(">", at_most=200)
        value = cursor.until("</parameter>")
        arguments[key] = value.removeprefix("\n").removesuffix("\n")


def write(rules: Rules) -> str:
    tag = "seed:tool_call" if rules.knows("<seed:tool_call>") else "tool_call"

    def call(tool: Offered) -> str:
        parts = [rules.text(f"<{tag}>\n<function={tool.name}>\n")]
        for key, schema, required in tool.properties:
            value = rules.value(tool, schema, "\n</parameter>\n")
            parts.append(rules.rule(f"{rules.text(f'<parameter={key}>' + _LINE)} {value}") + ("" if required else "?"))
        return " ".join([*parts, rules.text(f"</function>\n</{tag}>")])

    return rules.repeated(rules.each(call))


_LINE = "\n"
QWEN_CODER = ToolFormat(
    "qwen3-coder",
    read,
    ("<tool_call>", "<seed:tool_call>", "<function="),
    ("<function=",),
    closings=("</tool_call>", "</seed:tool_call>", "</function>"),
    write=write,
)
