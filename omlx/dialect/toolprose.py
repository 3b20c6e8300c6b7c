"""*Tool prose*: tools and calls put into words, for templates that have no place for them.

The words follow a format that the output parser finds again, the model's own where its template shows one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from omlx.dialect.conversation import write_call_as_json
from omlx.request import Message, ToolCall

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
    if messages and messages[0].role == "system":
        first = Message(role="system", content=f"{messages[0].content}\n\n{text}".strip(), images=messages[0].images)
        return [first, *messages[1:]]
    return [Message(role="system", content=text), *messages]


def call_writer(template: str) -> Callable[[ToolCall], str]:
    """How the model behind `template` would have written a call itself."""
    if "<|tool_call_start|>" in template or "<|tool_list_start|>" in template:
        return lambda call: f"<|tool_call_start|>[{_python(call)}]<|tool_call_end|>"
    if "<|tool_call|>" in template:
        return lambda call: f"<|tool_call|>[{write_call_as_json(call)}]"
    return lambda call: f"<tool_call>\n{write_call_as_json(call)}\n</tool_call>"


def _python(call: ToolCall) -> str:
    return f"{call.name}({', '.join(f'{key}={value!r}' for key, value in call.arguments.items())})"
