"""Qwen3-Coder, Nemotron 3, Seed-OSS: `<tool_call><function=f><parameter=k>text</parameter></function></tool_call>`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from omlx.messages.request import ToolCall
from omlx.prompting.tools.cursor import Cursor, NotACall
from omlx.prompting.tools.format import ToolFormat
from omlx.prompting.tools.objects import read_arguments
from omlx.prompting.tools.offered import OfferedTools
from omlx.prompting.tools.rules import OfferedTool, Rules

_OUTER = ("<tool_call>", "<seed:tool_call>")
_OUTER_END = ("</tool_call>", "</seed:tool_call>")
_FUNCTIONS = ("<function=", "<function =", "<function name=", "<function name =", "function=")
"""The first is right. The last is understood within the outer tag."""
_PARAMETERS = ("<parameter=", "<parameter =", "<parameter name=", "<parameter name =")
_END = re.compile(r"\n?</(?:function|tool_call|seed:tool_call)>")


def read(cursor: Cursor, offered_tools: OfferedTools) -> None:
    """One or more functions; the outer tag is sometimes left out."""
    outer = ""
    while True:
        cursor.blank()
        if any(cursor.maybe(opening) for opening in (_FUNCTIONS if outer else _FUNCTIONS[:2])):
            cursor.keep(_function(cursor, offered_tools, seed=outer == "<seed:tool_call>"))
            if not outer:
                return
            cursor.stray_tags(*_OUTER_END)
        elif cursor.kept:
            if cursor.at_end:
                cursor.wait()
            elif not any(cursor.maybe(closing) for closing in _OUTER_END):
                cursor.position = cursor.kept_end
            return
        elif outer and any(cursor.maybe(closing) for closing in _OUTER_END):
            return
        else:
            outer = cursor.one_of(*_OUTER)


def _function(cursor: Cursor, offered_tools: OfferedTools, *, seed: bool) -> ToolCall:
    name = _unquoted(cursor.head())
    properties = offered_tools.properties(name)
    arguments: dict[str, str] = {}
    while True:
        cursor.blank()
        if cursor.maybe("</function>"):
            cursor.blank()
            if not arguments and properties and cursor.next_is(*_PARAMETERS, "{"):
                # It has changed places with the next tag.
                continue
            break
        if any(cursor.maybe(opening) for opening in _PARAMETERS):
            key = _key(cursor, properties)
            value = _value(cursor, _sibling(properties, arguments, key))
            arguments[key] = _unwrapped(value, seed and cursor.text.endswith("</parameter>", 0, cursor.position))
        elif cursor.next_is("{"):
            whole = read_arguments(cursor, "</function>", *_OUTER_END)
            cursor.blank()
            cursor.maybe("</function>")
            return offered_tools.call(name, whole)
        elif not arguments and properties and any(cursor.maybe(opening) for opening in _OUTER):
            # The two opening tags have changed places.
            continue
        elif not arguments and cursor.maybe("<function="):
            name = cursor.head()
            properties = offered_tools.properties(name)
        elif not cursor.maybe("</parameter>"):
            # The closing tag may be missing where something follows that ends the call anyway.
            cursor.stray_tags(*_OUTER_END)
            cursor.blank()
            ended = cursor.next_is(*_OUTER_END, *_OUTER, *_FUNCTIONS[:2])
            if ended or cursor.ends_with(offered_tools.complete(name, arguments), "</function>"):
                break
            raise cursor.undecided() if cursor.at_end else NotACall()
    return offered_tools.call_with_texts(name, arguments)


def _unquoted(name: str) -> str:
    return name.strip().strip("\"'")


def _value(cursor: Cursor, sibling: re.Pattern[str]) -> str:
    """The text of a parameter. A closing tag that text follows is part of it, and one of the function that stands in
    front of the parameter's has changed places with that."""
    value = cursor.value("</parameter>", sibling, _END)
    while cursor.text.endswith("</parameter>", 0, cursor.position):
        end = cursor.position
        cursor.blank()
        follows = "" if cursor.at_end else cursor.text[cursor.position]
        within = cursor.text.find("</parameter>", end) if follows not in {"", "<"} else -1
        swapped = value.rstrip().endswith("</function>") and cursor.next_is(*_OUTER_END)
        cursor.position = end
        if swapped:
            return value.rstrip().removesuffix("</function>").rstrip("\n") + "\n"
        if within < 0:
            if follows not in {"", "<"}:
                cursor.wait()
            break
        value += "</parameter>" + cursor.text[end:within]
        cursor.position = within + len("</parameter>")
    return value


_NEXT_CALL = r"(?:<(?:seed:)?tool_call>\s*)?<function ?= ?[\w.:-]+>\s*<parameter ?="


def _key(cursor: Cursor, properties: Mapping[str, Any]) -> str:
    """The name of a parameter. Where its tag is not closed, its value follows on the same line."""
    start = cursor.position
    head = cursor.head()
    if not cursor.glued:
        return _unquoted(head)
    known = max((key for key in properties if head.startswith(key)), key=len, default="")
    if not known:
        raise NotACall
    cursor.position = start + len(known)
    return known


def _sibling(properties: Mapping[str, Any], given: Collection[str], key: str) -> re.Pattern[str]:
    """The beginning of another parameter or function. A parameter that the tool does not have is text."""
    others = [re.escape(name) for name in properties if name not in given and name != key]
    names = "|".join(others) or (r"(?!)" if properties else r"[\w.-]+")
    return re.compile(rf"""\n?(?:<parameter(?: name)? ?= ?["']?(?:{names})["']?\s*[>\n]|{_NEXT_CALL})""")


def _unwrapped(value: str, exact: bool) -> str:
    """Without the line breaks around it. `exact`: the family writes values right between the tags (Seed-OSS)."""
    if exact and not value.startswith("\n"):
        return value
    return value.removeprefix("\n").removesuffix("\n")


def write(rules: Rules) -> str:
    tag = "seed:tool_call" if rules.knows("<seed:tool_call>") else "tool_call"

    def call(tool: OfferedTool) -> str:
        parts = [rules.text(f"<{tag}>\n<function={tool.name}>\n")]
        for key, schema, required in tool.properties:
            value = rules.value(tool, schema, "\n</parameter>\n")
            parts.append(rules.rule(f"{rules.text(f'<parameter={key}>' + _LINE)} {value}") + ("" if required else "?"))
        return " ".join([*parts, rules.text(f"</function>\n</{tag}>")])

    return rules.repeated(rules.each_way(call))


_LINE = "\n"
QWEN_CODER = ToolFormat(
    "qwen3-coder",
    read,
    ("<tool_call>", "<seed:tool_call>", "<function=", "<function ="),
    ("<function=",),
    closings=("</tool_call>", "</seed:tool_call>", "</function>"),
    write=write,
)
