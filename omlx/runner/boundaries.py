"""The *boundaries* of a prompt: where later prompts are likely to part from it.

The KV store can restore a model with recurrent state only where a snapshot was taken, so it has to be told ahead.
The next prompts are rendered as the template would render them, with made-up texts where they are not known yet, and
compared with the present one. So templates that rewrite the past (that drop the thinking of earlier turns, or put
the tools before the last message) need no knowledge of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from omlx.engine.prefix_dedup import common_prefix
from omlx.messages.request import GenerateRequest, Message
from omlx.prompting.errors import TemplateError, TemplateTooSlow

_UNKNOWN = "\u2063"
"""What stands for a text not known yet: a character that no text begins with."""
_FIXED = {"system", "developer"}


def boundaries(request: GenerateRequest, text: str, render: Callable[[GenerateRequest], str]) -> list[int]:
    """Positions in characters within `text`, the prompt of `request`, ascending. `render` may raise TemplateError."""
    if request.raw_prompt is not None or request.suffix or not request.messages:
        return []
    positions = set()
    for messages in _futures(request.messages):
        try:
            other = render(msgspec.structs.replace(request, messages=messages))
        except TemplateTooSlow:
            break
        except TemplateError:
            continue  # The template does not take such a conversation, so nobody will send it.
        positions.add(common_prefix(text, other))
    return sorted(positions - {0})


def _futures(messages: list[Message]) -> Iterator[list[Message]]:
    """Conversations that begin like this one."""
    user, answer = Message("user", _UNKNOWN), Message("assistant", _UNKNOWN)
    fixed = next((index for index, message in enumerate(messages) if message.role not in _FIXED), len(messages))
    yield [*messages[:fixed], user]  # Another conversation with the same system prompt and tools.
    last = messages[-1].role
    if last == "user" and len(messages) > fixed + 1:
        yield [*messages[:-1], user]  # The last question, asked in another way.
    if last != "assistant":
        yield [*messages, answer, user]  # The next turn.
