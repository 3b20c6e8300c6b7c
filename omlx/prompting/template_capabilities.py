"""*Template capabilities* are what a Jinja chat template does with the shapes of messages: found by rendering probes,
once.

A template rarely says that it ignores a system message or wants tool arguments as text; it drops the text, prints a
Python dict or fails. So short conversations with unmistakable words are rendered, and the words are looked for.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from omlx.messages.request import Message, ToolCall
from omlx.prompting.conversation import JsonMessage, to_json
from omlx.prompting.errors import TemplateError, TemplateTooSlow

Render = Callable[[list[JsonMessage], list[dict[str, Any]]], str]
"""Messages and tools → prompt; raises TemplateError."""

SHORT_ID, LONG_ID = "callA0001", "call_a0000001"


class TemplateCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a template takes. Each False or True asks for one adaptation of the messages."""

    system: bool
    """System messages reach the prompt."""
    two_systems: bool = True
    """So do two of them at the front of the conversation, in their order."""
    late_systems: bool = True
    """So do those between other messages, at their place."""
    developer: bool = False
    """Messages of the role `developer` reach the prompt."""
    parts: bool
    """Text must come as content parts: a plain string is not rendered."""
    images: bool
    """A part that is an image leaves its mark in the prompt."""
    videos: bool = False
    """So does a part that is a video."""
    tools: bool
    """Tool definitions reach the prompt."""
    tools_key: Literal["", "list", "text"] = ""
    """Where they do not: the system message has a key `tools` for them, as a list or as JSON text."""
    calls: bool
    """Earlier tool calls and their results reach the prompt."""
    results: bool = True
    """Tool results reach the prompt where the calls stand in the text."""
    many_calls: bool = True
    """One message may hold several calls."""
    text_with_calls: bool = True
    """So may one that holds text as well; False: the text has to stand in a message of its own in front of them."""
    call_opening: str = ""
    """Where such text reaches the prompt in neither way: what the template writes between the beginning of an answer
    and the name of its first call. The text belongs in front of it."""
    result_parts: bool = False
    """Tool results must be content parts."""
    string_arguments: bool = False
    null_content: bool = False
    short_ids: bool = False
    """Call ids must be nine letters or digits (Mistral)."""


def probe(render: Render, *, needs_tools: bool = False) -> TemplateCapabilities:
    """The capabilities of the template behind `render`. Raises TemplateTooSlow.

    `needs_tools`: the template is for conversations with tools only, and may fail without.
    """
    usual = [TOOL] if needs_tools else []

    def attempt(messages: list[JsonMessage], tools: list[dict[str, Any]] | None = None) -> str:
        try:
            return render(messages, tools or usual)
        except TemplateTooSlow:
            raise
        except TemplateError:
            return ""

    user = Message(role="user", content="Uniform-7f3a")
    parts = not _shows(attempt([to_json(user)]), user.content) and _shows(
        attempt([to_json(user, parts=True)]), user.content
    )
    question = to_json(user, parts=parts)
    system = to_json(Message(role="system", content="Sierra-51c2"), parts=parts)
    text_part = {"type": "text", "text": user.content}
    without = attempt([{"role": "user", "content": [text_part]}])
    seen, watched = (attempt([{"role": "user", "content": [{"type": kind}, text_part]}]) for kind in ("image", "video"))
    shape = _call_shape(attempt, question, parts=parts)
    tools = "probe_tool_9d" in attempt([question], [TOOL])
    history = [to_json(Message(role="assistant", content="calls", tool_calls=[])), *_exchange(1, {})[1:]]
    reply = to_json(Message(role="assistant", content="Romeo-90d4"), parts=parts)
    second = to_json(Message(role="system", content="Sierra-77e8"), parts=parts)
    developer = to_json(Message(role="developer", content="Delta-2b5f"), parts=parts)
    again = to_json(Message(role="user", content="Uniform-b61c"), parts=parts)
    return TemplateCapabilities(
        # Mistral Nemo's shows it in the last message, if that is the user's.
        system=all(
            "Sierra-51c2" in attempt([system, question, *more], [TOOL] if more else None)
            for more in ([], _exchange(1, shape, parts=parts) if shape is not None else [])
        ),
        two_systems=_in_order(attempt([system, second, question]), "Sierra-51c2", "Sierra-77e8", user.content),
        late_systems=_in_order(
            attempt([system, question, reply, second, again]),
            "Sierra-51c2",
            user.content,
            "Sierra-77e8",
            "Uniform-b61c",
        ),
        developer="Delta-2b5f" in attempt([developer, question]),
        parts=parts,
        images=_shows(seen, user.content) and seen != without,
        videos=_shows(watched, user.content) and watched != without,
        tools=tools,
        tools_key="" if tools else _tools_key(attempt, question),
        calls=shape is not None,
        results="Result-6a1d-0" in attempt([question, *history], [TOOL]),
        many_calls=shape is None or _values(attempt([question, *_exchange(2, shape, parts=parts)], [TOOL])) == 2,
        **_place_of_text(attempt, [question, reply, again], shape, parts=parts),
    )


def _place_of_text(
    attempt: Callable[[list[JsonMessage], list[dict[str, Any]]], str],
    others: list[JsonMessage],
    shape: dict[str, bool] | None,
    *,
    parts: bool,
) -> dict[str, Any]:
    """The shape of calls, with `text_with_calls` or `call_opening`. `others`: question, answer, question."""
    if shape is None:
        return {}
    place: dict[str, Any] = {**shape}
    question, reply, again = others
    words = ("Text-4c0b", "Text-8d1e")
    texts = [to_json(Message(role="assistant", content=word), parts=parts) for word in words]
    called, *results = _exchange(1, shape, parts=parts)

    def shown(messages: list[JsonMessage], *words: str) -> bool:
        prompt = attempt([question, *messages], [TOOL])
        return all(word in prompt for word in (*words, "Value-2e8f-0", "Result-6a1d-0"))

    if shown([{**called, "content": texts[0]["content"]}, *results], words[0]):
        return place
    if shown([texts[0], called, *results], words[0]):
        # Mistral's templates want questions and answers to alternate, and messages with calls not to count.
        loop = [called, *results, called, *results, reply, again]
        split = [texts[0], called, *results, texts[1], called, *results, reply, again]
        if shown(split, *words) or not shown(loop):
            return {**place, "text_with_calls": False}
    opening = _opening_of_call(attempt([question, called], [TOOL]), attempt([question, texts[0]], [TOOL]))
    return {**place, "call_opening": opening}


def _opening_of_call(with_call: str, with_text: str) -> str:
    """What of the first prompt stands between the part that both begin with and the name of the call."""
    begin = len(os.path.commonprefix([with_call, with_text]))  # noqa: RUF071
    name = with_call.find("probe_tool_9d", begin)
    return with_call[begin:name] if begin and name > begin else ""


def _shows(prompt: str, text: str) -> bool:
    """Whether the text is in the prompt as text, not as the `repr` of a list of parts."""
    return text in prompt and f"'{text}'" not in prompt


def _in_order(prompt: str, *words: str) -> bool:
    """Whether the prompt has all the words, one behind the other."""
    places = [prompt.find(word) for word in words]
    return -1 not in places and places == sorted(places)


TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "probe_tool_9d",
        "description": "Probe.",
        "parameters": {
            "type": "object",
            "properties": {"key_4b": {"type": "string", "description": "Key."}},
            "required": ["key_4b"],
        },
    },
}


def _tools_key(
    attempt: Callable[[list[JsonMessage], list[dict[str, Any]]], str], question: JsonMessage
) -> Literal["", "list", "text"]:
    """How the tools stand in a system message (GLM-4-9B: a list, Phi-4-mini: text); "" where they cannot."""
    forms: tuple[Literal["list", "text"], ...] = ("list", "text")
    for form in forms:
        prompt = attempt(with_tools_key([question], [TOOL], form), [])
        if "probe_tool_9d" in prompt and "'probe_tool_9d'" not in prompt:
            return form
    return ""


def with_tools_key(
    messages: list[JsonMessage], tools: list[dict[str, Any]], form: Literal["list", "text"]
) -> list[JsonMessage]:
    """The messages, the tools in the key `tools` of the system message in front, which is added where it is missing."""
    content = (
        tools if form == "list" else json.dumps([tool.get("function", tool) for tool in tools], ensure_ascii=False)
    )
    if messages and messages[0]["role"] == "system":
        return [{**messages[0], "tools": content}, *messages[1:]]
    return [{"role": "system", "content": "", "tools": content}, *messages]


def _call_shape(
    attempt: Callable[[list[JsonMessage], list[dict[str, Any]]], str], question: JsonMessage, *, parts: bool
) -> dict[str, bool] | None:
    """The first way of writing a tool call and its result that the template renders well; None: there is none."""
    nones = attempt([question], [TOOL]).count("None")
    for in_parts, short, null, string in itertools.product((False, True), repeat=4):
        shape = {"result_parts": in_parts, "short_ids": short, "null_content": null, "string_arguments": string}
        prompt = attempt([question, *_exchange(1, shape, parts=parts)], [TOOL])
        as_repr = "{'key_4b': 'Value" in prompt or prompt.count("None") > nones or '"{\\"key_4b' in prompt
        # The tool's definition shows the name as well, but never the value.
        if _values(prompt) and _shows(prompt, "Result-6a1d-0") and not as_repr:
            return shape
    return None


def _exchange(count: int, shape: dict[str, bool], *, parts: bool = False) -> list[JsonMessage]:
    """An assistant message with `count` calls, and their results."""
    identity = SHORT_ID if shape.get("short_ids") else LONG_ID
    calls = [
        ToolCall("probe_tool_9d", {"key_4b": f"Value-2e8f-{number}"}, f"{identity[:-1]}{number}")
        for number in range(count)
    ]
    called = to_json(
        Message(role="assistant", tool_calls=calls),
        parts=parts,
        string_arguments=shape.get("string_arguments", False),
        null_content=shape.get("null_content", False),
    )
    answers = [
        Message(role="tool", content=f"Result-6a1d-{number}", tool_name=call.name, tool_call_id=call.id)
        for number, call in enumerate(calls)
    ]
    return [called, *(to_json(answer, result_parts=shape.get("result_parts", False)) for answer in answers)]


def _values(prompt: str) -> int:
    """How many calls of an exchange the prompt shows."""
    return sum(f"Value-2e8f-{number}" in prompt for number in range(2))
