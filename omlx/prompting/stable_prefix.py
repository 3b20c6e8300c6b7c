"""A *stable prefix*: what an agent changes from turn to turn is moved behind what stays the same.

The KV cache serves the longest beginning that two prompts share. Some agents write something new into the first
lines of their system prompt with each request, and so share next to nothing with themselves:

- Claude Code's billing header, which tells Anthropic's servers who pays and the model nothing, is left out; - a line
with the time of day goes to the end of the last message of the user or a tool, where every template has room.

A date alone stays where it is: it changes once a day, and at the end it would cost a little with each turn.
"""

from __future__ import annotations

import re

import msgspec

from omlx.messages.request import GenerateRequest, Message
from omlx.prompting.clock import split_clock

_BILLING = re.compile(r"^x-anthropic-billing-header:(?:[ \t]*[\w-]+=[^;\n]*;)*[ \t]*\n?", re.MULTILINE)


def with_stable_prefix(request: GenerateRequest) -> GenerateRequest:
    """`request` with its system messages free of what changes; the same one where nothing does."""
    moved: list[str] = []
    messages = [_without(message, moved) if message.role == "system" else message for message in request.messages]
    if messages == request.messages:
        return request
    kept = [message for message in messages if message.content or message.role != "system"]
    return msgspec.structs.replace(request, messages=_with_note(kept, "".join(moved).strip()))


def _without(message: Message, moved: list[str]) -> Message:
    """`message` without its changing lines, which are added to `moved`."""
    kept, clock = split_clock(_BILLING.sub("", message.content))
    moved.append(clock)
    return msgspec.structs.replace(message, content=kept)


def _with_note(messages: list[Message], note: str) -> list[Message]:
    """`note` at the end of the last message that is not the model's own; in front where there is none."""
    if not note:
        return messages
    index = max((index for index, message in enumerate(messages) if message.role in {"user", "tool"}), default=None)
    if index is None:
        return [Message(role="system", content=note), *messages]
    content = f"{messages[index].content}\n\n<system-reminder>\n{note}\n</system-reminder>"
    noted = msgspec.structs.replace(messages[index], content=content)
    return [*messages[:index], noted, *messages[index + 1 :]]
