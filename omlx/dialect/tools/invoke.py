"""Calls as `<invoke name="f"><parameter name="k">text</parameter></invoke>`: MiniMax, DeepSeek V3.2 and others."""

from __future__ import annotations

import re
from typing import NamedTuple

from omlx.dialect.tools.cursor import Cursor, NotACall
from omlx.dialect.tools.format import ToolFormat
from omlx.dialect.tools.parameters import schema_types
from omlx.dialect.tools.rules import Offered, Rules
from omlx.dialect.tools.toolbox import Toolbox
from omlx.request import ToolCall

_NAME = re.compile(r"""\s*name\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'<>]+))(.*)""", re.DOTALL)


class _Tags(NamedTuple):
    wrapper: str
    """Name of the element around all calls; "" where there is none."""
    call: str
    parameter: str


def _reader(tags: _Tags) -> ToolFormat:
    opening = f"<{tags.wrapper}>" if tags.wrapper else f"<{tags.call} name="

    def read(cursor: Cursor, toolbox: Toolbox) -> list[ToolCall]:
        if not tags.wrapper:
            cursor.literal(f"<{tags.call}")
            return [_call(cursor, toolbox, tags)]
        cursor.literal(opening)
        calls: list[ToolCall] = []
        while True:
            cursor.blank()
            if cursor.one_of(f"</{tags.wrapper}>", f"<{tags.call}") != f"<{tags.call}":
                break
            calls.append(_call(cursor, toolbox, tags))
        if not calls:
            raise NotACall
        return calls

    def write(rules: Rules) -> str:
        calls = rules.repeated(rules.each(lambda tool: _write_call(rules, tool, tags)))
        if not tags.wrapper:
            return calls
        return " ".join((rules.text(opening + "\n"), calls, rules.text(f"</{tags.wrapper}>")))

    closing = f"</{tags.wrapper or tags.call}>"
    # DeepSeek's template puts its tags together from this.
    mark = "｜DSML｜" if "｜DSML｜" in opening else opening
    return ToolFormat(tags.wrapper or tags.call, read, (opening,), (mark,), closings=(closing,), write=write)


def _call(cursor: Cursor, toolbox: Toolbox, tags: _Tags) -> ToolCall:
    name, _ = _attributes(cursor)
    arguments: dict[str, str] = {}
    plain: dict[str, str] = {}
    while True:
        cursor.blank()
        if cursor.one_of(f"</{tags.call}>", f"<{tags.parameter}") != f"<{tags.parameter}":
            call = toolbox.call_with_texts(name, arguments)
            call.arguments.update(plain)
            return call
        key, rest = _attributes(cursor)
        value = cursor.until(f"</{tags.parameter}>")
        cdata = re.fullmatch(r"\s*<!\[CDATA\[(.*)\]\]>\s*", value, re.DOTALL)
        value = cdata.group(1) if cdata else value
        arguments[key] = value
        if 'string="true"' in rest:
            # DeepSeek says which values are text.
            plain[key] = value


def _write_call(rules: Rules, tool: Offered, tags: _Tags) -> str:
    typed_texts = "｜DSML｜" in tags.call
    parts = [rules.text(f'<{tags.call} name="{tool.name}">\n')]
    for key, schema, required in tool.properties:
        types = schema_types(schema, tool.schema)
        text = "true" if not types or "string" in types else "false"
        kind = f' string="{text}"' if typed_texts else ""
        value = rules.value(tool, schema, f"</{tags.parameter}>")
        head = rules.text(f'<{tags.parameter} name="{key}"{kind}>')
        parts.append(rules.rule(f"{head} {value} {rules.text(_LINE)}") + ("" if required else "?"))
    return " ".join([*parts, rules.text(f"</{tags.call}>\n")])


_LINE = "\n"


def _attributes(cursor: Cursor) -> tuple[str, str]:
    """The `name` attribute and what follows it, up to the end of the tag."""
    match = _NAME.fullmatch(cursor.until(">", at_most=300))
    if match is None:
        raise NotACall
    return next(part for part in match.groups()[:3] if part is not None), match.group(4)


FORMATS = (
    _reader(_Tags("minimax:tool_call", "invoke", "parameter")),
    _reader(_Tags("｜DSML｜function_calls", "｜DSML｜invoke", "｜DSML｜parameter")),
    _reader(_Tags("｜DSML｜tool_calls", "｜DSML｜invoke", "｜DSML｜parameter")),
    _reader(_Tags("atem:function_calls", "atem:invoke", "atem:parameter")),
    _reader(_Tags("", "function", "param")),
)
"""MiniMax M2, DeepSeek V3.2 and V4, Muse Spark, MiniCPM 5."""
