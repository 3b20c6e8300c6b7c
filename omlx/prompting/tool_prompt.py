"""*Tool prose*: tools and calls put into words, for templates that have no place for them.

The words follow a format that the output parser finds again, the model's own where its template shows one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from typing import Any

from omlx.messages.request import Message, ToolCall
from omlx.prompting.conversation import SYSTEM_ROLES, write_call_as_json

_INSTRUCTIONS = """\
You may call functions to help with the user's request. These are the functions, as JSON:
<tools>
{tools}
</tools>
To call a function, answer with its name and arguments as JSON within <tool_call> tags and nothing else:
<tool_call>
{{"name": "the function's name", "arguments": {{"an argument": "its value"}}}}
</tool_call>
Call functions only when they help; otherwise answer as usual."""


def describe_tools(messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> list[Message]:
    """The conversation with the tools explained at the end of its system message."""
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    text = _INSTRUCTIONS.format(tools=listed)
    if messages and messages[0].role in SYSTEM_ROLES:
        first = messages[0]
        told = Message(role=first.role, content=f"{first.content}\n\n{text}".strip(), images=first.images)
        return [told, *messages[1:]]
    return [Message(role="system", content=text), *messages]


def call_writer(template: str, tokens: Collection[str] = ()) -> Callable[[ToolCall], str]:
    """How the model behind `template` would have written a call itself: its template or its vocabulary tells."""

    def speaks(marker: str) -> bool:
        return marker in template or marker in tokens

    if speaks("<|tool_call_start|>") or speaks("<|tool_list_start|>"):
        return lambda call: f"<|tool_call_start|>[{_python(call)}]<|tool_call_end|>"
    if speaks("<|START_ACTION|>"):
        return _cohere
    if speaks(_MINIMAX):
        return _minimax
    if speaks("<|tool_calls_section_begin|>"):
        return _kimi
    if speaks("[TOOL_CALLS]"):
        return lambda call: f"[TOOL_CALLS] [{write_call_as_json(call)}]"
    if speaks("<|tool_call|>"):
        closing = "<|/tool_call|>" if speaks("<|/tool_call|>") else ""
        return lambda call: f"<|tool_call|>[{write_call_as_json(call)}]{closing}"
    return lambda call: f"<tool_call>\n{write_call_as_json(call)}\n</tool_call>"


def _python(call: ToolCall) -> str:
    return f"{call.name}({', '.join(f'{key}={value!r}' for key, value in call.arguments.items())})"


def _cohere(call: ToolCall) -> str:
    written = {"tool_call_id": "0", "tool_name": call.name, "parameters": call.arguments}
    return f"<|START_ACTION|>[\n    {json.dumps(written, ensure_ascii=False)}\n]<|END_ACTION|>"


def _kimi(call: ToolCall) -> str:
    identity = call.id if call.id.startswith(f"functions.{call.name}:") else f"functions.{call.name}:0"
    written = json.dumps(call.arguments, ensure_ascii=False)
    inner = f"<|tool_call_begin|>{identity}<|tool_call_argument_begin|>{written}<|tool_call_end|>"
    return f"<|tool_calls_section_begin|>{inner}<|tool_calls_section_end|>"


_MINIMAX = "]<]minimax[>["


def _minimax(call: ToolCall) -> str:
    """MiniMax M3: every tag behind its token; objects and lists as elements within."""
    inner = "".join(_element(name, value) for name, value in call.arguments.items())
    tag = _MINIMAX
    return f'{tag}<tool_call>{tag}<invoke name="{call.name}">{inner}{tag}</invoke>{tag}</tool_call>'


def _element(name: str, value: Any) -> str:
    if isinstance(value, dict):
        inner = "".join(_element(key, item) for key, item in value.items())
    elif isinstance(value, list):
        inner = "".join(_element("item", item) for item in value)
    else:
        inner = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"{_MINIMAX}<{name}>{inner}{_MINIMAX}</{name}>"
