"""The Responses dialect, way in: input items become messages.

*Items* are flat: a model's turn is a run of reasoning, message and function_call items. Here such a run becomes one
assistant message again. Items and tools that only OpenAI's servers can run are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from omlx.messages.request import GenerateRequest, Message, ToolCall
from omlx.protocols.common import MessageContent
from omlx.protocols.generation import ChatInput, ModelFacts, UnsupportedTools, chat_request, given_options
from omlx.protocols.http_error import HTTPError
from omlx.protocols.ollama import gojson
from omlx.protocols.ollama.wire import Tool
from omlx.protocols.openai import common as common
from omlx.protocols.openai import responses_wire as wire
from omlx.protocols.tools import read_choice

NO_INPUT = "[] is too short - 'input'"

_SKIPPED = frozenset({"item_reference", "compaction", "mcp_list_tools", "additional_tools"})
_ROLES = {"developer": "system"}


def read_chat(body: wire.ResponsesRequest, messages: Sequence[Message]) -> ChatInput:
    """What is asked for; `messages` is the conversation without instructions. Raises HTTPError."""
    system = [Message(role="system", content=body.instructions)] if body.instructions else []
    if not messages:
        raise HTTPError(400, NO_INPUT)
    if body.background:
        raise HTTPError(400, "background is not supported: ask without it, and stream the answer")
    return ChatInput(
        [*system, *messages],
        think=common.read_effort(body.reasoning.effort if body.reasoning else ""),
        choice=read_choice(read_tools(body.tools), body.tool_choice),
    )


def generation(
    body: wire.ResponsesRequest,
    chat: ChatInput,
    model: ModelFacts,
    unsupported_tools: UnsupportedTools = "error",
) -> GenerateRequest:
    """The internal request. Raises HTTPError, OptionError."""
    request = chat_request(
        body.model,
        model,
        chat,
        options=given_options(
            num_predict=body.max_output_tokens,
            temperature=1.0 if body.temperature is None else body.temperature,
            top_p=body.top_p,
            think_budget=body.reasoning.max_tokens if body.reasoning else None,
        ),
        format=_format(body.text),
        template_kwargs=body.chat_template_kwargs,
        unsupported_tools=unsupported_tools,
        truncate=body.truncate,
        one_call=not body.parallel_tool_calls,
    )
    if request is None:
        raise HTTPError(400, NO_INPUT)
    return request


def _format(text: wire.ResponseTextConfig | None) -> Any:
    wanted = text.format if text else {}
    if wanted.get("type") == "json_object":
        return "json"
    return wanted.get("schema") if wanted.get("type") == "json_schema" else None


def read_tools(tools: Sequence[dict[str, Any]], prefix: str = "") -> list[dict[str, Any]]:
    """The functions among `tools` as Ollama writes tools; those of a namespace are called `namespace.name`."""
    result: list[dict[str, Any]] = []
    for tool in tools:
        match tool:
            case {"type": "function", "name": str(name)}:
                keys = ("description", "parameters", "strict")
                function = {key: tool[key] for key in keys if tool.get(key) is not None}
                value = {"type": "function", "function": {"name": prefix + name, **function}}
                # A schema reads to a plain object, checked as in Ollama's API.
                result.append(cast(dict[str, Any], gojson.read(value, Tool)))
            case {"type": "namespace", "name": str(name), "tools": list(inner)}:
                result += read_tools([item for item in inner if isinstance(item, dict)], f"{prefix}{name}.")
    return result


def namespaces(tools: Sequence[dict[str, Any]], prefix: str = "") -> dict[str, tuple[str, str]]:
    """The functions that live in a namespace: what the model calls them → namespace and name, as clients know them."""
    result: dict[str, tuple[str, str]] = {}
    for tool in tools:
        match tool:
            case {"type": "namespace", "name": str(name), "tools": list(inner)}:
                result |= namespaces([item for item in inner if isinstance(item, dict)], f"{prefix}{name}.")
            case {"type": "function", "name": str(name)} if prefix:
                result[prefix + name] = (prefix.removesuffix("."), name)
    return result


def read_input(value: Any) -> list[Message]:
    """`input`: a text or a list of items, as messages. Raises HTTPError."""
    if value is None:
        return []
    if isinstance(value, str):
        return [Message(role="user", content=value)]
    if not isinstance(value, list):
        raise HTTPError(400, "input must be a string or an array of items")
    reader = _InputReader()
    for index, item in enumerate(value):
        try:
            reader.read(item)
        except HTTPError as error:
            raise HTTPError(error.status, f"input[{index}]: {error.message}") from None
    return reader.messages()


class _InputReader:
    """Collects items into messages; `_turn` is the assistant message that is still growing."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._turn: Message | None = None

    def messages(self) -> list[Message]:
        self._close()
        return self._messages

    def read(self, item: Any) -> None:
        if not isinstance(item, dict):
            raise HTTPError(400, "input item must be an object")
        kind = item.get("type") or ("message" if "role" in item else "")
        match kind:
            case "message":
                self._message(item)
            case "function_call" | "custom_tool_call":
                self._call(item)
            case "function_call_output" | "custom_tool_call_output":
                self._output(item)
            case "reasoning":
                self._reasoning(item)
            case "":
                raise HTTPError(400, "input item missing required 'type' field")
            case _ if kind in _SKIPPED or str(kind).endswith("_call"):
                pass
            case _:
                raise HTTPError(400, f'unknown input item type: "{kind}"')

    def _message(self, item: dict[str, Any]) -> None:
        content = _content(item.get("content"))
        role = str(item.get("role") or "user")
        if role == "assistant":
            turn = self._open() if not (self._turn and self._turn.content) else self._reopen()
            turn.content = content.text
            turn.images = content.images
            return
        self._close()
        self._messages.append(Message(role=_ROLES.get(role, role).lower(), content=content.text, images=content.images))

    def _call(self, item: dict[str, Any]) -> None:
        if item.get("type") == "custom_tool_call":
            arguments = {"input": str(item.get("input") or "")}
        else:
            arguments = common.read_arguments(item.get("arguments"), "failed to parse function call arguments")
        names = [part for part in (item.get("namespace"), item.get("name")) if isinstance(part, str) and part]
        call = ToolCall(".".join(names), arguments, str(item.get("call_id") or ""))
        turn = self._open()
        turn.tool_calls = [*turn.tool_calls, call]

    def _output(self, item: dict[str, Any]) -> None:
        self._close()
        content = _content(item.get("output"))
        self._messages.append(
            Message(
                role="tool", content=content.text, images=content.images, tool_call_id=str(item.get("call_id") or "")
            )
        )

    def _reasoning(self, item: dict[str, Any]) -> None:
        """Belongs to what the assistant says next."""
        summary = item.get("summary")
        parts = summary if isinstance(summary, list) else []
        text = "\n".join(str(part.get("text") or "") for part in parts if isinstance(part, dict))
        self._close()
        self._open().thinking = str(item.get("encrypted_content") or text)

    def _open(self) -> Message:
        if self._turn is None:
            self._turn = Message(role="assistant")
        return self._turn

    def _reopen(self) -> Message:
        self._close()
        return self._open()

    def _close(self) -> None:
        """A turn of thoughts alone says nothing: it was cut off before its message."""
        if self._turn is not None and (self._turn.content or self._turn.tool_calls):
            self._messages.append(self._turn)
        self._turn = None


def _content(value: Any) -> MessageContent:
    """A text or content parts; several texts are lines of their own. Raises HTTPError."""
    if value is None or isinstance(value, str):
        return MessageContent(value or "", [])
    if not isinstance(value, list):
        raise HTTPError(400, "content must be a string or an array of parts")
    texts: list[str] = []
    images: list[bytes] = []
    for index, part in enumerate(value):
        match part:
            case {"type": "input_text" | "output_text" | "text", "text": str(text)}:
                texts.append(text)
            case {"type": "refusal", "refusal": str(text)}:
                texts.append(text)
            case {"type": "input_image", "image_url": str(url)} | {"type": "input_image", "image_url": {"url": url}}:
                images.append(common.read_image(url))
            case {"type": "input_file"}:
                raise HTTPError(400, "file inputs are not currently supported")
            case {"type": "encrypted_content" | "reasoning_text" | "summary_text"}:
                pass
            case _:
                kind = part.get("type", "") if isinstance(part, dict) else ""
                raise HTTPError(400, f"content[{index}]: unknown content type: {kind}")
    return MessageContent("\n".join(texts), images)
