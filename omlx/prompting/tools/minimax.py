"""MiniMax M3: elements named after the parameters, each tag behind the token `]<]minimax[>[`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from omlx.prompting.tools.cursor import MAX_NESTING, Cursor, NotACall
from omlx.prompting.tools.format import ToolFormat
from omlx.prompting.tools.offered import OfferedTools, typed
from omlx.prompting.tools.parameters import ANNOTATIONS, parameters_of, resolved, schema_types
from omlx.prompting.tools.rules import OfferedTool, Rules

_TOKEN = "]<]minimax[>["  # noqa: S105


_OPEN = re.compile(r"([\w.:-]+)>")
_WRAPPER = ("<tool_call>", "<tool_call", "tool_call>")
"""The tag around all calls, also where it is spoiled."""
_UNMARKED = re.compile(r"\s*<([\w.:-]+)>")
_ITEM = "item"
"""The element of each item of an array."""
_WRITTEN_LEVELS = 6
"""Levels of elements; what is deeper, say in a schema that contains itself, is JSON."""
_WRITTEN_RULES = 200
"""Rules of a grammar from which on no further elements are written, since references multiply them."""
_WRITTEN_ITEMS = 100
"""Items that are counted; arrays with other limits are JSON."""
_Node = str | list[tuple[str, Any]]
"""The text of an element, or its children: names and nodes."""


def read(cursor: Cursor, offered_tools: OfferedTools) -> None:
    while True:
        cursor.blank()
        if cursor.maybe(_TOKEN) or (not cursor.kept and any(cursor.maybe(tag) for tag in _WRAPPER)):
            continue
        if cursor.maybe("<invoke name="):
            name = cursor.head().strip().strip("\"'")
            properties = offered_tools.properties(name)
            node = _children(cursor, ("invoke",))
            if isinstance(node, str):
                if node.strip():
                    raise NotACall
                node = []
            root = offered_tools.schema(name)
            arguments = {key: _typed(child, properties.get(key), root) for key, child in node}
            cursor.keep(offered_tools.call(name, arguments))
        elif cursor.maybe("</tool_call>"):
            return
        elif cursor.kept:
            if cursor.at_end:
                cursor.wait()
            cursor.position = cursor.kept_end
            return
        else:
            raise cursor.undecided() if cursor.at_end else NotACall()


def _children(cursor: Cursor, path: tuple[str, ...]) -> _Node:
    """What stands in the innermost element of `path`, whose closing tag is stepped over where it is there."""
    if len(path) > MAX_NESTING:
        raise NotACall
    start = cursor.position
    children: list[tuple[str, Any]] = []
    texts: list[str] = []
    while True:
        begin = cursor.position
        if cursor.text.find(_TOKEN, begin) < 0:
            rest = cursor.to_end(_TOKEN, f"</{path[-1]}>")
            if rest is not None:
                return children or rest.removesuffix("\n")
        text = cursor.until(_TOKEN)
        end = cursor.position - len(_TOKEN)
        unmarked = _UNMARKED.match(text) if path == ("invoke",) else None
        if unmarked:
            # The token in front of an element is missing.
            cursor.position = begin + unmarked.end()
            children.append((unmarked[1], _children(cursor, (*path, unmarked[1]))))
            continue
        if text.rstrip().endswith(f"</{path[-1]}>"):
            # The token in front of its closing tag is missing.
            cursor.position = end
            return children or cursor.text[start:end].rstrip().removesuffix(f"</{path[-1]}>")
        texts.append(text)
        while cursor.maybe(_TOKEN):
            pass
        closed = cursor.maybe(f"</{path[-1]}>")
        if closed or cursor.next_is(*(f"</{name}>" for name in path[:-1]), "</tool_call>", "<invoke name="):
            if not closed:
                # An element around this one is closed: its own closing tag was left out.
                cursor.position = end
            if children and "".join(texts).strip():
                return cursor.text[start:end].replace(_TOKEN, "")
            return children or cursor.text[start:end]
        cursor.literal("<")
        name = cursor.head()
        if not _OPEN.fullmatch(name + ">"):
            raise NotACall
        children.append((name, _children(cursor, (*path, name))))


def _typed(node: _Node, schema: Any, root: Mapping[str, Any]) -> Any:
    """The value of an element as the schema wants it. `root`: where its references lead."""
    schema = resolved(schema, root)
    schema = schema if isinstance(schema, Mapping) else {}
    types = schema_types(schema, root)
    if isinstance(node, str):
        if not node.strip() and "string" not in types and types & {"array", "object"}:
            return [] if "array" in types else {}
        return typed(node, schema, root)
    if "array" in types or ("object" not in types and all(name == _ITEM for name, _ in node)):
        return [_typed(child, schema.get("items"), root) for _, child in node]
    properties = {found.name: found.schema for found in parameters_of(schema, root)}
    return {name: _typed(child, properties.get(name), root) for name, child in node}


def write(rules: Rules) -> str:
    def call(tool: OfferedTool) -> str:
        parts = [rules.text(f'{_TOKEN}<invoke name="{tool.name}">')]
        for key, schema, required in tool.properties:
            parts.append(_write_element(rules, tool, key, schema) + ("" if required else "?"))
        return " ".join([*parts, rules.text(f"{_TOKEN}</invoke>\n")])

    calls = rules.repeated(rules.each_way(call))
    return " ".join((rules.text(f"{_TOKEN}<tool_call>\n"), calls, rules.text(f"{_TOKEN}</tool_call>")))


def _write_element(rules: Rules, tool: OfferedTool, key: str, schema: Any, level: int = 0) -> str:
    """An element. Objects and arrays whose schemas say no more than what stands in them are elements, others JSON."""
    opening, closing = rules.text(f"{_TOKEN}<{key}>"), f"{_TOKEN}</{key}>"
    plain = resolved(schema, tool.schema)
    simple = isinstance(plain, Mapping) and level < _WRITTEN_LEVELS and rules.count < _WRITTEN_RULES
    keywords = (plain.keys() - ANNOTATIONS) if simple else {""}
    inner: list[str] | None = None
    if keywords <= {"type", "properties", "required", "additionalProperties"} and plain.get("type") == "object":
        parameters = parameters_of(plain, tool.schema)
        listed = {parameter.name for parameter in parameters if _OPEN.fullmatch(parameter.name + ">")}
        required = plain.get("required", [])
        whole = isinstance(required, list) and all(name in listed for name in required if isinstance(name, str))
        if listed and whole and not plain.get("additionalProperties"):
            inner = [
                _write_element(rules, tool, name, value, level + 1) + ("" if needed else "?")
                for name, value, needed in parameters
                if name in listed
            ]
    elif keywords <= {"type", "items", "minItems", "maxItems"} and plain.get("type") == "array":
        least, most = plain.get("minItems", 0), plain.get("maxItems", "")
        counts = [count for count in (least, most) if count != ""]
        few = all(type(count) is int and 0 <= count <= _WRITTEN_ITEMS for count in counts)
        if few and isinstance(plain.get("items"), Mapping):
            inner = [f"{_write_element(rules, tool, _ITEM, plain['items'], level + 1)}{{{least},{most}}}"]
    if inner is None:
        return rules.rule(f"{opening} {rules.value(tool, schema, closing)}")
    return rules.rule(" ".join([opening, *inner, rules.text(closing)]))


_ENDS = (f"{_TOKEN}</tool_call>", f"{_TOKEN}</invoke>")
MINIMAX3 = ToolFormat(
    "minimax-m3",
    read,
    (_TOKEN,),
    (_TOKEN,),
    closings=_ENDS,
    strays=_ENDS,
    orphans=(_TOKEN, "</invoke>", "</tool_call>"),
    write=write,
)
