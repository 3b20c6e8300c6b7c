"""MiniMax M3: elements named after the parameters, each tag behind the token `]<]minimax[>[`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from omlx.prompting.tools.cursor import MAX_NESTING, Cursor, NotACall
from omlx.prompting.tools.format import ToolFormat
from omlx.prompting.tools.offered import OfferedTools, typed
from omlx.prompting.tools.parameters import schema_types

_TOKEN = "]<]minimax[>["  # noqa: S105


_OPEN = re.compile(r"([\w.:-]+)>")
_WRAPPER = ("<tool_call>", "<tool_call", "tool_call>")
"""The tag around all calls, also where it is spoiled."""
_UNMARKED = re.compile(r"\s*<([\w.:-]+)>")
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
            cursor.keep(offered_tools.call(name, {key: _typed(child, properties.get(key)) for key, child in node}))
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


def _typed(node: _Node, schema: Any) -> Any:
    """The value of an element as the schema wants it."""
    schema = schema if isinstance(schema, Mapping) else {}
    if isinstance(node, str):
        return typed(node, schema)
    if "array" in schema_types(schema) or all(name == "item" for name, _ in node):
        return [_typed(child, schema.get("items")) for _, child in node]
    properties = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    return {name: _typed(child, properties.get(name)) for name, child in node}


_ENDS = (f"{_TOKEN}</tool_call>", f"{_TOKEN}</invoke>")
MINIMAX3 = ToolFormat(
    "minimax-m3",
    read,
    (_TOKEN,),
    (_TOKEN,),
    closings=_ENDS,
    strays=_ENDS,
    orphans=(_TOKEN, "</invoke>", "</tool_call>"),
)
