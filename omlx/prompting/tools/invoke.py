"""Calls as `<invoke name="f"><parameter name="k">text</parameter></invoke>`: MiniMax, DeepSeek V3.2 and others."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from omlx.messages.request import ToolCall
from omlx.prompting.tools.cursor import Cursor, NotACall
from omlx.prompting.tools.format import ToolFormat
from omlx.prompting.tools.objects import read_arguments, read_calls
from omlx.prompting.tools.offered import OfferedTools
from omlx.prompting.tools.parameters import schema_types
from omlx.prompting.tools.rules import OfferedTool, Rules

_QUOTED = re.compile(r"""\s*name\s*=\s*"[^"]*"(?:\s+\w+="[^"]*")*""")
_REST = re.compile(r"""(?:\s+[\w-]+\s*=\s*(?:"[^"]*"|'[^']*'|[^\s"']+))*\s*/?\s*""")
_VALUE = re.compile(r"\svalue\s*=\s*\"([^\"]*)\"")
_NAME = re.compile(r"""\s*name\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'<>]+))(.*)""", re.DOTALL)


class _Tags(NamedTuple):
    wrapper: str
    """Name of the element around all calls; "" where there is none."""
    call: str
    parameter: str
    line: str = ""
    """What stands between the tags of a parameter and its value."""


def _reader(tags: _Tags) -> ToolFormat:
    opening = f"<{tags.wrapper}>" if tags.wrapper else f"<{tags.call} name="
    closing = f"</{tags.wrapper or tags.call}>"
    openings = (opening, f"<{tags.call} name=") if tags.wrapper else (opening,)

    def read(cursor: Cursor, offered_tools: OfferedTools) -> None:
        wrapped = False
        while True:
            cursor.blank()
            if cursor.maybe(f"<{tags.call} name="):
                cursor.keep(_call(cursor, offered_tools, tags))
                if not wrapped:
                    return
                cursor.stray_tags(closing)
            elif cursor.kept:
                if cursor.at_end:
                    cursor.wait()
                elif not cursor.maybe(closing):
                    cursor.position = cursor.kept_end
                return
            elif not tags.wrapper or (wrapped and cursor.maybe(closing)):
                return
            elif wrapped and cursor.next_is("{", "["):
                # The whole call as JSON.
                read_calls(cursor, offered_tools, closing)
                cursor.blank()
                cursor.maybe(closing)
                return
            else:
                cursor.literal(opening)
                wrapped = True

    def write(rules: Rules) -> str:
        calls = rules.repeated(rules.each_way(lambda tool: _write_call(rules, tool, tags)))
        if not tags.wrapper:
            return calls
        return " ".join((rules.text(opening + "\n"), calls, rules.text(f"</{tags.wrapper}>")))

    # DeepSeek's template puts its tags together from this.
    closings = tuple(dict.fromkeys((closing, f"</{tags.call}>")))
    mark = "｜DSML｜" if "｜DSML｜" in opening else opening
    return ToolFormat(tags.wrapper or tags.call, read, openings, (mark,), closings=closings, write=write)


def _call(cursor: Cursor, offered_tools: OfferedTools, tags: _Tags) -> ToolCall:
    """A call, of which `<invoke name=` is already read."""
    name, rest = _attributes(cursor, "name=")
    if rest.rstrip().endswith("/"):
        return offered_tools.call(name, {})
    properties = offered_tools.properties(name)
    arguments: dict[str, str] = {}
    plain: dict[str, str] = {}
    endings = (f"</{tags.wrapper}>", f"<{tags.wrapper}>") if tags.wrapper else ()
    while True:
        cursor.blank()
        if cursor.maybe(f"</{tags.call}>"):
            cursor.blank()
            if not arguments and properties and cursor.next_is(f"<{tags.parameter}", "{"):
                # It has changed places with the next tag.
                continue
            break
        if cursor.maybe(f"<{tags.parameter}"):
            key, rest = _attributes(cursor)
            given = _VALUE.search(rest) if rest.rstrip().endswith("/") else None
            value = (
                given.group(1)
                if given
                else cursor.value(f"</{tags.parameter}>", _sibling(tags, properties, arguments, key), _end(tags))
            )
            cdata = re.fullmatch(r"\s*<!\[CDATA\[(.*)\]\]>\s*", value, re.DOTALL)
            value = cdata.group(1) if cdata else value
            if not cursor.text.endswith(f"</{tags.parameter}>", 0, cursor.position):
                value = value.removesuffix("\n")
            elif tags.line and value.startswith(tags.line):
                value = value.removeprefix(tags.line).removesuffix(tags.line)
            arguments[key] = value
            if 'string="true"' in rest:
                # DeepSeek says which values are text.
                plain[key] = value
        elif cursor.next_is("{"):
            whole = read_arguments(cursor, f"</{tags.call}>", *endings)
            cursor.blank()
            cursor.maybe(f"</{tags.call}>")
            return offered_tools.call(name, whole)
        elif not arguments and properties and tags.wrapper and cursor.maybe(f"<{tags.wrapper}>"):
            # The two opening tags have changed places.
            continue
        elif not arguments and cursor.maybe(f"<{tags.call} name="):
            name, _ = _attributes(cursor, "name=")
            properties = offered_tools.properties(name)
        elif not cursor.maybe(f"</{tags.parameter}>"):
            # The closing tag may be missing where something follows that ends the call anyway.
            ended = cursor.next_is(*endings, f"<{tags.call} name=")
            if ended or cursor.ends_with(offered_tools.complete(name, arguments), f"</{tags.call}>"):
                break
            raise cursor.undecided() if cursor.at_end else NotACall()
    call = offered_tools.call_with_texts(name, arguments)
    call.arguments.update(plain)
    return call


def _sibling(tags: _Tags, properties: Mapping[str, Any], given: Collection[str], key: str) -> re.Pattern[str]:
    """The beginning of another parameter or call. A parameter that the tool does not have is text."""
    others = [re.escape(name) for name in properties if name not in given and name != key]
    names = "|".join(others) or (r"(?!)" if properties else r"[\w.-]+")
    return re.compile(rf"""\n?(?:<{tags.parameter} name=["']?(?:{names})["'\s>]|<{tags.call} name=)""")


def _end(tags: _Tags) -> re.Pattern[str]:
    return re.compile(rf"\n?</(?:{tags.call}{'|' + tags.wrapper if tags.wrapper else ''})>")


def _write_call(rules: Rules, tool: OfferedTool, tags: _Tags) -> str:
    typed_texts = "｜DSML｜" in tags.call
    parts = [rules.text(f'<{tags.call} name="{tool.name}">\n')]
    for key, schema, required in tool.properties:
        types = schema_types(schema, tool.schema)
        text = "true" if not types or "string" in types else "false"
        kind = f' string="{text}"' if typed_texts else ""
        value = rules.value(tool, schema, f"{tags.line}</{tags.parameter}>")
        head = rules.text(f'<{tags.parameter} name="{key}"{kind}>{tags.line}')
        parts.append(rules.rule(f"{head} {value} {rules.text(_LINE)}") + ("" if required else "?"))
    return " ".join([*parts, rules.text(f"</{tags.call}>\n")])


_LINE = "\n"


def _attributes(cursor: Cursor, begun: str = "") -> tuple[str, str]:
    """The `name` attribute and what follows it, up to the end of the tag. `begun`: what of them is already read."""
    start = cursor.position
    head = cursor.head()
    match = _NAME.fullmatch(begun + head)
    if cursor.glued or match is None or not _REST.fullmatch(match.group(4)):
        # The tag is not closed: text follows its last attribute.
        quoted = _QUOTED.match(begun + head)
        match = _NAME.fullmatch(quoted.group()) if quoted else None
        if quoted is None or match is None:
            raise NotACall
        cursor.position = start + quoted.end() - len(begun)
    return next(part for part in match.groups()[:3] if part is not None), match.group(4)


_STEP3_TOKENS = ("<｜tool_calls_begin｜>", "<｜tool_call_begin｜>", "function<｜tool_sep｜>", "<｜tool_call_end｜>",
                 "<｜tool_calls_end｜>")  # fmt: skip
_STEP3 = _Tags("", "steptml:invoke", "steptml:parameter")


def _read_step3(cursor: Cursor, offered_tools: OfferedTools) -> None:
    """Elements within tokens, of which some may be missing or doubled."""
    while True:
        end = cursor.position
        cursor.blank()
        if cursor.maybe("<steptml:invoke name="):
            cursor.keep(_call(cursor, offered_tools, _STEP3))
        elif any(cursor.maybe(token) for token in _STEP3_TOKENS):
            if cursor.kept:
                cursor.kept_end = cursor.position
            if cursor.text.endswith(_STEP3_TOKENS[-1], 0, cursor.position):
                return
        elif cursor.kept:
            if cursor.at_end:
                cursor.wait()
            cursor.position = end
            return
        else:
            _skip_spoiled_token(cursor)


def _skip_spoiled_token(cursor: Cursor) -> None:
    """Go on to a call on the same line, a few characters ahead."""
    line = cursor.text[cursor.position : cursor.position + 120].partition("\n")[0]
    place = line.find("<steptml:invoke name=")
    if place > 0:
        cursor.position += place
    elif cursor.position + len(line) == len(cursor.text):
        raise cursor.undecided()
    else:
        raise NotACall


def _write_step3(rules: Rules) -> str:
    def call(tool: OfferedTool) -> str:
        head, end = rules.text("".join(_STEP3_TOKENS[1:3])), rules.text(_STEP3_TOKENS[3])
        return f"{head} {_write_call(rules, tool, _STEP3)} {end}"

    calls = rules.repeated(rules.each_way(call))
    return " ".join((rules.text(_STEP3_TOKENS[0] + "\n"), calls, rules.text("\n" + _STEP3_TOKENS[4])))


STEP3 = ToolFormat(
    "step3",
    _read_step3,
    ("<｜tool_calls_begin｜>", "<｜tool_call_begin｜>", "<steptml:invoke name="),
    ("<｜tool_calls_begin｜>", "steptml:invoke"),
    closings=(*_STEP3_TOKENS[3:], "</steptml:invoke>"),
    strays=(*_STEP3_TOKENS[2:], "<｜tool_sep｜>"),
    write=_write_step3,
)
FORMATS = (
    _reader(_Tags("minimax:tool_call", "invoke", "parameter")),
    _reader(_Tags("｜DSML｜function_calls", "｜DSML｜invoke", "｜DSML｜parameter")),
    _reader(_Tags("｜DSML｜tool_calls", "｜DSML｜invoke", "｜DSML｜parameter")),
    _reader(_Tags("atem:function_calls", "atem:invoke", "atem:parameter")),
    _reader(_Tags("dots_function_call", "invoke", "parameter", line="\n")),
    _reader(_Tags("", "function", "param")),
    STEP3,
)
"""MiniMax M2, DeepSeek V3.2 and V4, Muse Spark, dots, MiniCPM 5."""
