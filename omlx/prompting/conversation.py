"""A *conversation* is the list of messages a template renders; here it is brought into the shape a template accepts.

Chat templates differ in what they take: some refuse a system role, some demand that user and assistant alternate,
some want tool arguments as text. All functions are pure: messages in, messages out.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from omlx.messages.request import Message, ToolCall

JsonMessage = dict[str, Any]
"""A message in the shape OpenAI gave it, which is what Jinja chat templates read."""

_replace = msgspec.structs.replace


def link_tool_results(messages: Iterable[Message]) -> list[Message]:
    """Give every tool call an id and every tool result both the id and the name of the call it answers.

    Clients send one or the other: Ollama's `tool_name`, OpenAI's `tool_call_id`. A result with neither answers the
    oldest open call.
    """
    linked: list[Message] = []
    open_calls: list[ToolCall] = []
    names: dict[str, str] = {}
    counter = itertools.count()
    for message in messages:
        if message.tool_calls:
            # Made-up ids count from zero, so that the same conversation always gives the same prompt.
            calls = [_replace(call, id=call.id or f"call_{next(counter):08d}") for call in message.tool_calls]
            open_calls += calls
            names.update((call.id, call.name) for call in calls)
            message = _replace(message, tool_calls=calls)
        elif message.role == "tool":
            answered = _answered(message, open_calls)
            if answered is not None:
                open_calls.remove(answered)
            name = message.tool_name or names.get(message.tool_call_id, "") or (answered.name if answered else "")
            identity = message.tool_call_id or (answered.id if answered else "")
            message = _replace(message, tool_name=name, tool_call_id=identity)
        linked.append(message)
    return linked


def _answered(result: Message, open_calls: list[ToolCall]) -> ToolCall | None:
    for call in open_calls:
        if result.tool_call_id:
            if call.id == result.tool_call_id:
                return call
        elif not result.tool_name or call.name == result.tool_name:
            return call
    return None


def renumber_calls(messages: Sequence[Message], new_id: Callable[[int, str], str]) -> list[Message]:
    """Replace call ids by `new_id(index over the conversation, function name)`: some templates insist on a form."""
    ids: dict[str, str] = {}
    counter = itertools.count()
    renumbered = []
    for message in messages:
        for call in message.tool_calls:
            ids[call.id] = new_id(next(counter), call.name)
        renumbered.append(
            _replace(
                message,
                tool_calls=[_replace(call, id=ids[call.id]) for call in message.tool_calls],
                tool_call_id=ids.get(message.tool_call_id, message.tool_call_id),
            )
        )
    return renumbered


def hoist_systems(messages: Sequence[Message]) -> list[Message]:
    """One system message at the very front, made of all of them."""
    systems = [message for message in messages if message.role in SYSTEM_ROLES]
    if not systems:
        return list(messages)
    merged = _replace(systems[0], content="\n\n".join(message.content for message in systems if message.content))
    return [merged, *(message for message in messages if message.role not in SYSTEM_ROLES)]


SYSTEM_ROLES = frozenset({"system", "developer"})


def merge_leading_systems(messages: Sequence[Message]) -> list[Message]:
    """The system messages that a conversation begins with as one."""
    count = _leading_systems(messages)
    if count < 2:
        return list(messages)
    text = "\n\n".join(message.content for message in messages[:count] if message.content)
    return [_replace(messages[0], content=text), *messages[count:]]


def fold_late_systems(messages: Sequence[Message]) -> list[Message]:
    """No system messages behind the first other one: see `fold_systems`."""
    count = _leading_systems(messages)
    return [*messages[:count], *fold_systems(messages[count:])]


def _leading_systems(messages: Sequence[Message]) -> int:
    others = (index for index, message in enumerate(messages) if message.role not in SYSTEM_ROLES)
    return next(others, len(messages))


def fold_systems(messages: Sequence[Message]) -> list[Message]:
    """No system messages: their text joins the user message beside them, or the tool result in front of them.

    Where there is neither it becomes a user message. It stays at its place in the conversation, so that prompts of
    later turns begin with the earlier ones.
    """
    folded: list[Message] = []
    waiting: list[str] = []

    def settle() -> None:
        """The text had no user message behind it."""
        text = "\n\n".join(waiting)
        last = folded[-1] if folded else None
        if not text:
            return
        if last is not None and last.role == "user":
            folded[-1] = _replace(last, content=f"{last.content}\n\n{text}".strip())
        elif last is not None and last.role == "tool":
            # Many templates take no user's turn there.
            folded[-1] = _replace(last, content=f"{last.content}\n\n<system-reminder>\n{text}\n</system-reminder>")
        else:
            folded.append(Message(role="user", content=text))
        waiting.clear()

    for message in messages:
        if message.role in SYSTEM_ROLES:
            waiting += [message.content] if message.content else []
        elif message.role == "user" and waiting:
            folded.append(_replace(message, content="\n\n".join([*waiting, message.content]).strip()))
            waiting.clear()
        else:
            settle()
            folded.append(message)
    settle()
    return folded


def merge_repeats(messages: Sequence[Message]) -> list[Message]:
    """Join neighbours of the same role (except `tool`) with a blank line: turns then alternate."""
    merged: list[Message] = []
    for message in messages:
        last = merged[-1] if merged else None
        if last is None or last.role != message.role or message.role == "tool":
            merged.append(message)
            continue
        merged[-1] = _replace(
            last,
            content="\n\n".join(text for text in (last.content, message.content) if text),
            thinking="\n\n".join(text for text in (last.thinking, message.thinking) if text),
            images=[*last.images, *message.images],
            tool_calls=[*last.tool_calls, *message.tool_calls],
        )
    return merged


def lead_with_user(messages: Sequence[Message]) -> list[Message]:
    """An empty user turn where a conversation begins with the assistant."""
    first = next((index for index, message in enumerate(messages) if message.role not in SYSTEM_ROLES), None)
    if first is None or messages[first].role != "assistant":
        return list(messages)
    return [*messages[:first], Message(role="user"), *messages[first:]]


_NOTHING = " "
"""For an answer that was never given: some templates refuse one without any text."""


def answer_before_user(messages: Sequence[Message]) -> list[Message]:
    """A blank answer between a tool's result and a user message: Mistral's templates want turns to alternate so."""
    answered: list[Message] = []
    for message in messages:
        if message.role == "user" and answered and answered[-1].role == "tool":
            answered.append(Message(role="assistant", content=_NOTHING))
        answered.append(message)
    return answered


def tell_lone_results(messages: Sequence[Message]) -> list[Message]:
    """Results of calls that are not in the conversation as user messages: some templates refuse them."""
    calls = {call.id for message in messages for call in message.tool_calls}
    lone = [message.role == "tool" and message.tool_call_id not in calls for message in messages]
    return [spell_out_tools([message])[0] if alone else message for message, alone in zip(messages, lone, strict=True)]


def one_call_each(messages: Sequence[Message]) -> list[Message]:
    """Messages with several calls split up, each call with its result behind it."""
    split: list[Message] = []
    results = {message.tool_call_id: message for message in messages if message.role == "tool"}
    taken: set[str] = set()
    for message in messages:
        if len(message.tool_calls) < 2:
            if message.role != "tool" or message.tool_call_id not in taken:
                split.append(message)
            continue
        for index, call in enumerate(message.tool_calls):
            one = Message(role=message.role) if index else message
            split.append(_replace(one, tool_calls=[call]))
            if call.id in results:
                split.append(results[call.id])
                taken.add(call.id)
    return split


def text_before_calls(messages: Sequence[Message]) -> list[Message]:
    """Text that came with calls as a message of its own: some templates show calls only where there is no text."""
    split: list[Message] = []
    for message in messages:
        if message.tool_calls and message.content:
            split.append(Message(role=message.role, content=message.content))
            message = _replace(message, content="")
        split.append(message)
    return split


def text_before_answered_calls(messages: Sequence[Message]) -> list[Message]:
    """The same, where an answer follows later on: gpt-oss drops what it wrote beside calls from then on."""
    answers = [
        index for index, message in enumerate(messages) if message.role == "assistant" and not message.tool_calls
    ]
    last = answers[-1] if answers else 0
    return [*text_before_calls(messages[:last]), *messages[last:]]


def write_call_as_json(call: ToolCall) -> str:
    return json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)


def spell_out_tools(
    messages: Sequence[Message], *, write: Callable[[ToolCall], str] = write_call_as_json, results: bool = True
) -> list[Message]:
    """Earlier tool calls as text, for templates that do not know them, and with `results` their results as well."""
    plain = []
    for message in messages:
        if message.tool_calls:
            calls = [write(call) for call in message.tool_calls]
            text = "\n".join(text for text in (message.content, *calls) if text)
            message = _replace(message, content=text, tool_calls=[])
        elif message.role == "tool" and results:
            title = f"Result of {message.tool_name}" if message.tool_name else "Tool result"
            message = Message(role="user", content=f"{title}:\n{message.content}", images=message.images)
        plain.append(message)
    return plain


def to_json(
    message: Message,
    *,
    parts: bool = False,
    result_parts: bool = False,
    string_arguments: bool = False,
    null_content: bool = False,
) -> JsonMessage:
    """The message as a Jinja template reads it.

    `parts`: content is a list of parts even where it is only text; with images it always is. `result_parts`: so is that
    of tool results. `string_arguments`: tool arguments as JSON text. `null_content`: a message that only calls tools
    has no content at all.
    """
    content: Any = message.content
    if message.images or message.videos or (result_parts if message.role == "tool" else parts):
        content = _parts(message)
    elif null_content and message.tool_calls and not message.content:
        content = None
    result: JsonMessage = {"role": message.role, "content": content}
    if message.thinking:
        # Qwen, GLM and others read the first, gpt-oss and Granite the second, Solar the third.
        result["reasoning_content"] = result["thinking"] = result["reasoning"] = message.thinking
        if message.tool_calls:
            # Cohere's name for what comes ahead of calls.
            result["tool_plan"] = message.thinking
    if message.tool_calls:
        result["tool_calls"] = [_call_to_json(call, string_arguments) for call in message.tool_calls]
    if message.role == "tool":
        result["name"] = message.tool_name
        result["tool_call_id"] = message.tool_call_id
    return result


def _call_to_json(call: ToolCall, string_arguments: bool) -> JsonMessage:
    arguments: Any = json.dumps(call.arguments, ensure_ascii=False) if string_arguments else call.arguments
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


IMAGE_MARK = "[img]"
"""Where in a message's text an image belongs, if its place is given at all (Ollama's convention)."""


def _parts(message: Message) -> list[JsonMessage]:
    """Images in front of the text, or where its `[img]` marks are; videos in front of all."""
    texts = message.content.split(IMAGE_MARK) if message.images else [message.content]
    marked = min(len(texts) - 1, len(message.images))
    parts: list[JsonMessage] = [{"type": "video"}] * len(message.videos)
    parts += [{"type": "image"}] * (len(message.images) - marked)
    for index, text in enumerate(texts):
        if index:
            parts.append({"type": "image"} if index <= marked else {"type": "text", "text": IMAGE_MARK})
        if text:
            parts.append({"type": "text", "text": text})
    return parts
