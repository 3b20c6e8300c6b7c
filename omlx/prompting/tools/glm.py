"""GLM: `<tool_call>f<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>` since 4.5; before, the name and JSON."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from omlx.prompting.tools import literals
from omlx.prompting.tools.cursor import Cursor, NotACall
from omlx.prompting.tools.format import Reader, ToolFormat, Writer
from omlx.prompting.tools.objects import read_arguments, read_calls
from omlx.prompting.tools.offered import OfferedTools
from omlx.prompting.tools.rules import OfferedTool, Rules


def _reader(prefix: str, suffix: str = "") -> Reader:
    """One call. `prefix` and `suffix` are what a family adds to the names of the elements."""

    def tag(name: str) -> str:
        return f"{prefix}{name}{suffix}>"

    opening, closing, after_all = "<" + tag("tool_call"), "</" + tag("tool_call"), "</" + tag("tool_calls")
    key_opening, key_closing = "<" + tag("arg_key"), "</" + tag("arg_key")
    value_opening, value_closing, separator = "<" + tag("arg_value"), "</" + tag("arg_value"), "<" + tag("tool_sep")
    end = re.compile(re.escape(closing))

    def sibling(properties: Mapping[str, Any], given: Collection[str], key: str) -> re.Pattern[str]:
        others = "|".join(re.escape(name) for name in properties if name not in given and name != key)
        names = others or (r"(?!)" if properties else r"[\w.-]+")
        next_call = rf"{re.escape(opening)}[\w.:-]+\s*(?:{re.escape(separator)}\s*)?{re.escape(key_opening)}"
        return re.compile(rf"\n?(?:{re.escape(key_opening)}\s*(?:{names})\s*<|{next_call})")

    def unopened_key(cursor: Cursor) -> bool:
        """A key whose opening tag is missing is next."""
        start = cursor.position
        match = _KEY.match(cursor.text, start)
        cursor.position = match.end() if match else start
        try:
            return match is not None and bool(cursor.next_is(key_closing))
        finally:
            cursor.position = start

    def key_name(cursor: Cursor) -> str:
        while cursor.maybe(key_opening):
            pass
        key = cursor.head().strip()
        while cursor.maybe(key_closing):
            pass
        return key

    def arguments_of(cursor: Cursor, offered_tools: OfferedTools, name: str) -> dict[str, str]:
        properties = offered_tools.properties(name)
        arguments: dict[str, str] = {}
        while True:
            cursor.blank()
            if cursor.maybe(closing):
                return arguments
            if cursor.next_is(key_opening) or unopened_key(cursor):
                key = key_name(cursor)
                cursor.blank()
                while cursor.maybe(value_opening):
                    pass
                value = cursor.value(value_closing, sibling(properties, arguments, key), end)
                closed = cursor.text.endswith(value_closing, 0, cursor.position)
                arguments[key] = value if closed else value.removesuffix("\n")
            elif not cursor.maybe(value_closing):
                # The closing tag may be missing where something follows that ends the call anyway.
                if cursor.next_is(opening, after_all) or cursor.ends_with(
                    offered_tools.complete(name, arguments), closing
                ):
                    return arguments
                raise cursor.undecided() if cursor.at_end else NotACall()

    def read(cursor: Cursor, offered_tools: OfferedTools) -> None:
        cursor.literal(opening)
        cursor.blank()
        while cursor.maybe(opening):
            cursor.blank()
        if cursor.next_is("{", "["):
            read_calls(cursor, offered_tools, closing)
            cursor.blank()
            cursor.maybe(closing)
            return
        start = cursor.position
        name = cursor.name()
        offered_tools.known(name)
        if cursor.next_is("("):
            # As Python.
            cursor.position = start
            cursor.keep(offered_tools.call(*literals.read_call(cursor)))
            cursor.blank()
            cursor.maybe(closing)
            return
        cursor.blank()
        while cursor.maybe(separator):
            cursor.blank()
        if cursor.next_is("{"):
            cursor.keep(offered_tools.call(name, read_arguments(cursor, closing, after_all)))
            cursor.blank()
            cursor.maybe(closing)
        else:
            cursor.keep(offered_tools.call_with_texts(name, arguments_of(cursor, offered_tools, name)))

    return read


_KEY = re.compile(r"[\w.-]+\s*")


def _all_reader(suffix: str) -> Reader:
    """Hunyuan 3 puts an element around all calls and, in some versions, a suffix on every name."""
    one = _reader("", suffix)

    def read(cursor: Cursor, offered_tools: OfferedTools) -> None:
        if not cursor.next_is(f"<tool_call{suffix}>"):
            cursor.literal(f"<tool_calls{suffix}>")
        while True:
            cursor.blank()
            if cursor.maybe(f"</tool_calls{suffix}>"):
                return
            if cursor.kept and cursor.at_end:
                cursor.wait()
                return
            one(cursor, offered_tools)

    return read


def read_bare(cursor: Cursor, offered_tools: OfferedTools) -> None:
    """`name`, a line break, the arguments as JSON."""
    name = cursor.name()
    cursor.literal("\n")
    offered_tools.known(name)
    cursor.keep(offered_tools.call(name, read_arguments(cursor)))


def _writer(prefix: str) -> Writer:
    def write(rules: Rules) -> str:
        def call(tool: OfferedTool) -> str:
            # GLM 4.7 and others write no line breaks.
            line = f"{rules.text(_LINE)}?"
            parts = [rules.text(f"<{prefix}tool_call>{tool.name}"), line]
            for key, schema, required in tool.properties:
                name, opening = (
                    rules.text(f"<{prefix}arg_key>{key}</{prefix}arg_key>"),
                    rules.text(f"<{prefix}arg_value>"),
                )
                value = rules.value(tool, schema, f"</{prefix}arg_value>")
                parts.append(rules.rule(f"{name} {line} {opening} {value} {line}") + ("" if required else "?"))
            return " ".join([*parts, rules.text(f"</{prefix}tool_call>")])

        return rules.repeated(rules.each_way(call))

    return write


def _all_writer(suffix: str) -> Writer:
    """Hunyuan 3: an element around all calls, a separator behind the name."""

    def write(rules: Rules) -> str:
        def call(tool: OfferedTool) -> str:
            parts = [rules.text(f"<tool_call{suffix}>{tool.name}<tool_sep{suffix}>\n")]
            for key, schema, required in tool.properties:
                head = rules.text(f"<arg_key{suffix}>{key}</arg_key{suffix}>\n<arg_value{suffix}>")
                value = rules.value(tool, schema, f"</arg_value{suffix}>")
                parts.append(rules.rule(f"{head} {value} {rules.text(_LINE)}") + ("" if required else "?"))
            return " ".join([*parts, rules.text(f"</tool_call{suffix}>")])

        calls = rules.repeated(rules.each_way(call))
        return " ".join((rules.text(f"<tool_calls{suffix}>\n"), calls, rules.text(f"\n</tool_calls{suffix}>")))

    return write


def write_bare(rules: Rules) -> str:
    return rules.each(lambda tool: f"{rules.text(tool.name + _LINE)} {rules.json(tool.schema)}")


_LINE = "\n"
GLM = ToolFormat("glm", _reader(""), ("<tool_call>",), ("<arg_key>",), closings=("</tool_call>",), write=_writer(""))
LONGCAT = ToolFormat(
    "longcat",
    _reader("longcat_"),
    ("<longcat_tool_call>",),
    ("<longcat_tool_call>",),
    closings=("</longcat_tool_call>",),
    write=_writer("longcat_"),
)


def hunyuan3(release: str) -> ToolFormat:
    """The format of Hunyuan 3 and later, whose names have a suffix that changes with the release."""
    suffix = f":{release}" if release else ""
    outer, inner = f"<tool_calls{suffix}>", f"<tool_call{suffix}>"
    return ToolFormat(
        f"hunyuan3:{release}" if release else "hunyuan3-plain",
        _all_reader(suffix),
        (outer, inner) if release else (outer,),
        (outer,) if release else ("<tool_sep>",),
        closings=(f"</tool_call{suffix}>", f"</tool_calls{suffix}>"),
        write=_all_writer(suffix),
    )


HUNYUAN3 = hunyuan3("opensource")
HUNYUAN3_PLAIN = hunyuan3("")
GLM4 = ToolFormat("glm4", read_bare, (), ("<|observation|>",), bare=True, closings=("}",), write=write_bare)
"""Its openings are the names of the tools."""
