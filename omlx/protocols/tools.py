"""Tools of a request and calls of an answer, as every protocol needs them.

A *tool* is an object `{"type": "function", "function": {"name", "description", "parameters", "strict"}}`; a *tool
choice* says which of the offered tools an answer may or must call.
"""

from __future__ import annotations

import json
import secrets
import string
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from omlx.messages.request import ToolCall
from omlx.protocols.http_error import HTTPError

_ID_LETTERS = string.ascii_lowercase + string.digits
_CHOICES = (None, "", "none", "auto", "required")
_NAMING = ("function", "custom")
"""Types of a choice that names a tool."""


class ToolChoice(NamedTuple):
    """The offered tools, and whether one of them (or the one named) has to be called."""

    tools: Sequence[dict[str, Any]] = ()
    must_call: bool | str = False


def read_choice(tools: Sequence[dict[str, Any]], choice: Any) -> ToolChoice:
    """What `tool_choice` ("auto", "none", "required", a function, or allowed_tools) makes of `tools`. Raises HTTPError.

    Where one is named the others are offered all the same: the prompt is then the one that the cache knows.
    """
    offered = list(tools)
    if not _is_choice(choice):
        raise HTTPError(400, 'tool_choice must be "none", "auto", "required" or name a function')
    if choice == "none":
        return ToolChoice()
    if not isinstance(choice, Mapping) or not offered:
        return ToolChoice(offered, choice == "required" and bool(offered))
    if choice.get("type") == "allowed_tools":
        inner = choice.get("allowed_tools")
        allowed = inner if isinstance(inner, Mapping) else choice
        named = {_name(tool) for tool in allowed.get("tools") or [] if isinstance(tool, Mapping)}
        offered = [tool for tool in offered if tool["function"]["name"] in named]
        return ToolChoice(offered, allowed.get("mode") == "required" and bool(offered))
    name = _name(choice)
    if name and all(tool["function"]["name"] != name for tool in offered):
        raise HTTPError(400, f"tool_choice names {name}, which is not among the tools")
    return ToolChoice(offered, name)


def _is_choice(choice: Any) -> bool:
    if not isinstance(choice, Mapping):
        return choice in _CHOICES
    kind = choice.get("type", "function")
    return kind == "allowed_tools" or (kind in _NAMING and _name(choice) != "")


def _name(tool: Mapping[str, Any]) -> str:
    """The function that a choice names, in the shape of chat completions or of responses; "" for any other tool."""
    function = tool.get("function", tool.get("custom"))
    name = function.get("name") if isinstance(function, Mapping) else tool.get("name")
    return name if isinstance(name, str) else ""


def without_strict(tools: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], bool]:
    """The tools as templates show them, and whether one of them is strict."""
    functions = [tool.get("function", {}) for tool in tools]
    plain = [
        {**tool, "function": {key: value for key, value in function.items() if key != "strict"}}
        for tool, function in zip(tools, functions, strict=True)
    ]
    return plain, any(function.get("strict") is True for function in functions)


def new_call_id() -> str:
    """`call_` and eight random letters or digits."""
    return "call_" + "".join(secrets.choice(_ID_LETTERS) for _ in range(8))


def arguments_text(call: ToolCall) -> str:
    """The arguments of a call as JSON text."""
    return json.dumps(call.arguments, ensure_ascii=False, separators=(",", ":"))
