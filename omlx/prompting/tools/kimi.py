"""Kimi: K2 puts `functions.name:0` and JSON between tokens; K3 writes elements in a notation of its own."""

from __future__ import annotations

import re
from typing import Any

from omlx.messages.request import ToolCall
from omlx.prompting.tools.cursor import Cursor, NotACall
from omlx.prompting.tools.format import ToolFormat
from omlx.prompting.tools.objects import read_arguments
from omlx.prompting.tools.offered import OfferedTools
from omlx.prompting.tools.parameters import schema_types
from omlx.prompting.tools.rules import OfferedTool, Rules

_SECTION, _SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _CALL_END, _ARGUMENTS = "<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_call_argument_begin|>"


def read_k2(cursor: Cursor, offered_tools: OfferedTools) -> None:
    while True:
        cursor.blank()
        if cursor.maybe(_SECTION):
            continue
        if cursor.maybe(_CALL):
            while cursor.maybe(_CALL):
                cursor.blank()
            name = cursor.name()
            cursor.blank()
            while cursor.maybe(_ARGUMENTS):
                cursor.blank()
            cursor.keep(offered_tools.call(name, read_arguments(cursor, _CALL_END, _SECTION_END)))
            cursor.blank()
            if cursor.maybe(_CALL_END):
                cursor.kept_end = cursor.position
        elif cursor.maybe(_SECTION_END) or cursor.kept:
            return
        else:
            raise cursor.undecided() if cursor.at_end else NotACall()


_K3_SIBLING = re.compile(r"<\|open\|>(?:argument|call)")
_K3_END = re.compile(r"<\|close\|>call")
_ATTRIBUTE = re.compile(r'(\w+)="([^"]*)"')


def _open(cursor: Cursor, kind: str) -> dict[str, str]:
    """The attributes of an element whose `<|open|>kind` is already read."""
    found = _ATTRIBUTE.findall(cursor.until("<|sep|>", at_most=300))
    return {name: value.replace("&quot;", '"').replace("&amp;", "&") for name, value in found}


def read_k3(cursor: Cursor, offered_tools: OfferedTools) -> None:
    cursor.literal("<|open|>tools<|sep|>")
    while True:
        cursor.blank()
        if cursor.maybe("<|open|>call"):
            cursor.keep(_k3_call(cursor, offered_tools))
        elif cursor.maybe("<|close|>tools<|sep|>"):
            return
        else:
            cursor.one_of("<|open|>tools<|sep|>", "<|close|>call<|sep|>")


def _k3_call(cursor: Cursor, offered_tools: OfferedTools) -> ToolCall:
    name = _open(cursor, "call").get("tool", "")
    arguments: dict[str, str] = {}
    texts: dict[str, str] = {}
    while True:
        cursor.blank()
        if cursor.over():
            call = offered_tools.call_with_texts(name, arguments)
            call.arguments.update(texts)
            return call
        match cursor.one_of("<|close|>call<|sep|>", "<|open|>argument", "<|open|>json", "<|close|>argument<|sep|>"):
            case "<|close|>call<|sep|>":
                call = offered_tools.call_with_texts(name, arguments)
                call.arguments.update(texts)
                return call
            case "<|open|>json":
                _open(cursor, "json")
                whole = read_arguments(cursor, "<|close|>")
                cursor.blank()
                cursor.maybe("<|close|>json<|sep|>")
                cursor.blank()
                cursor.literal("<|close|>call<|sep|>")
                return offered_tools.call(name, whole)
            case "<|close|>argument<|sep|>":
                continue
        attributes = _open(cursor, "argument")
        value = cursor.value("<|close|>argument<|sep|>", _K3_SIBLING, _K3_END)
        (texts if attributes.get("type") == "string" else arguments)[attributes.get("key", "")] = value


def write_k2(rules: Rules) -> str:
    def call(tool: OfferedTool) -> str:
        head = f"{rules.text(f'{_CALL}functions.{tool.name}:')} /[0-9]{{1,3}}/ {rules.text(_ARGUMENTS)}"
        return f"{head} {rules.json(tool.schema)} {rules.text(_CALL_END)}"

    return " ".join((rules.text(_SECTION), rules.repeated(rules.each(call)), rules.text(_SECTION_END)))


_K3_TYPES = {"integer": "number"}
"""What the family calls a type, where that is not JSON Schema's name."""


def write_k3(rules: Rules) -> str:
    """The answer, which the prompt or the model may have opened, is closed first."""

    def argument(tool: OfferedTool, key: str, schema: Any, required: bool) -> str:
        def typed(kind: str) -> str:
            return rules.text(f'<|open|>argument key="{_escaped(key)}" type="{_K3_TYPES.get(kind, kind)}"<|sep|>')

        types = schema_types(schema, tool.schema) or {"string"}
        ways = []
        if "string" in types:
            text = schema if types == {"string"} else {"allOf": [schema, {"type": "string"}]}
            ways.append(f"{typed('string')} {rules.value(tool, text, _K3_ARGUMENT_END)}")
        for kind in sorted(types - {"string"} - ({"integer"} if "number" in types else set())):
            only = schema if types == {kind} else {"allOf": [schema, {"type": kind}]}
            ways.append(f"{typed(kind)} {rules.property(tool, only)} {rules.text(_K3_ARGUMENT_END)}")
        return rules.rule(" | ".join(ways)) + ("" if required else "?")

    def call(tool: OfferedTool) -> str:
        head = rules.text(f'<|open|>call tool="{_escaped(tool.name)}" index="')
        arguments = [argument(tool, *parameter) for parameter in tool.properties]
        end = rules.text("<|close|>call<|sep|>")
        return " ".join([head, "/[0-9]{1,3}/", rules.text('"<|sep|>'), *arguments, end])

    answer = f"({rules.text('<|open|>response<|sep|>')})? ({rules.text('<|close|>response<|sep|>')})?"
    calls = rules.repeated(rules.each_way(call), "")
    return f"{answer} {rules.text('<|open|>tools<|sep|>')} {calls} {rules.text('<|close|>tools<|sep|>')}"


def _escaped(value: str) -> str:
    return value.replace("&", "&amp;").replace('"', "&quot;")


_K3_ARGUMENT_END = "<|close|>argument<|sep|>"
_K2_ENDS = (_CALL_END, _SECTION_END)
K2 = ToolFormat(
    "kimi-k2", read_k2, (_SECTION, _CALL), (_SECTION, _CALL), closings=_K2_ENDS, strays=_K2_ENDS, write=write_k2
)
K3 = ToolFormat(
    "kimi-k3",
    read_k3,
    ("<|open|>tools<|sep|>",),
    ("<|open|>tools<|sep|>", "<|end_of_msg|>"),
    closings=("<|close|>call<|sep|>", "<|close|>tools<|sep|>"),
    strays=("<|close|>call<|sep|>", "<|close|>tools<|sep|>"),
    write=write_k3,
)
