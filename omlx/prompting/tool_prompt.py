"""A *tool prompt*: tools and calls put into words, for templates that have no place for them.

The words follow a format that the output parser finds again: the model's own where its template or vocabulary shows
one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from typing import Any

from omlx.messages.request import Message, ToolCall
from omlx.prompting.conversation import SYSTEM_ROLES
from omlx.prompting.tools import formats_for
from omlx.prompting.tools.examples import taught_format, write_example

_INSTRUCTIONS = """\
You may call functions to help with the user's request. These are the functions, as JSON:
<tools>
{tools}
</tools>
To call a function, answer with its name and arguments in this form and nothing else:
{example}
Call functions only when they help; otherwise answer as usual."""
_EXAMPLE = ToolCall("function_name", {"argument_name": "its value"})

WriteCall = Callable[[ToolCall], str]


def describe_tools(messages: Sequence[Message], tools: Sequence[dict[str, Any]], write: WriteCall) -> list[Message]:
    """The conversation with the tools explained at the end of its system message. `write`: how calls look."""
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    text = _INSTRUCTIONS.format(tools=listed, example=write(_EXAMPLE))
    if messages and messages[0].role in SYSTEM_ROLES:
        first = messages[0]
        message = Message(role=first.role, content=f"{first.content}\n\n{text}".strip(), images=first.images)
        return [message, *messages[1:]]
    return [Message(role="system", content=text), *messages]


def call_writer(template: str, tokens: Collection[str] = ()) -> WriteCall:
    """How the model behind `template` would have written a call itself: its template or its vocabulary tells."""
    name = taught_format(formats_for(template, tokens))

    def knows(mark: str) -> bool:
        return mark in template or mark in tokens

    return lambda call: write_example(name, call, knows)
