"""The Anthropic dialect, way in: a request to /v1/messages becomes the internal one.

Blocks of one turn become one message; tool results become messages of their own in front of the text of their turn.
Blocks and fields that mean nothing here (cache_control, metadata, redacted thinking …) are left out without a word.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from omlx.messages.request import GenerateRequest, Message, ToolCall
from omlx.protocols.anthropic import wire as wire
from omlx.protocols.common import MessageContent
from omlx.protocols.generation import ChatInput, ModelFacts, UnsupportedTools, chat_request, given_options
from omlx.protocols.http_error import HTTPError
from omlx.protocols.media import read_base64
from omlx.protocols.ollama import gojson
from omlx.protocols.ollama import wire as ollama
from omlx.protocols.tools import ToolChoice, read_choice

_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "max"}
NO_MESSAGES = "messages is required"
NO_WEB_SEARCH = "web search is not available: it runs on Ollama's servers"


def check(body: wire.MessagesRequest) -> None:
    """Raises HTTPError."""
    check_count(body)
    if body.max_tokens <= 0:
        raise HTTPError(400, "max_tokens is required and must be positive")


def check_count(body: wire.CountRequest) -> None:
    """Raises HTTPError."""
    if not body.model:
        raise HTTPError(400, "model is required")
    if not body.messages:
        raise HTTPError(400, NO_MESSAGES)


def read_chat(body: wire.CountRequest) -> ChatInput:
    """Messages, tools and thinking of a request. Raises HTTPError, Malformed."""
    system = _join(body.system if isinstance(body.system, list) else [body.system or ""]).text
    messages = [Message(role="system", content=system)] if system else []
    for turn in body.messages:
        messages += _turn(turn)
    return ChatInput(messages, _choice(body), _think(body))


def generation(
    body: wire.CountRequest, chat: ChatInput, model: ModelFacts, unsupported_tools: UnsupportedTools = "error"
) -> GenerateRequest:
    """The internal request. A model that cannot think is not asked to. Raises HTTPError, OptionError."""
    request = chat_request(
        body.model,
        model,
        chat if "thinking" in model.capabilities else chat._replace(think=None),
        options=_options(body) if isinstance(body, wire.MessagesRequest) else {},
        format=_format(body.output_config),
        template_kwargs=body.chat_template_kwargs,
        unsupported_tools=unsupported_tools,
        truncate=not isinstance(body, wire.MessagesRequest) or body.truncate,
        one_call=body.tool_choice.get("disable_parallel_tool_use") is True,
    )
    if request is None:
        raise HTTPError(400, NO_MESSAGES)
    return request


def counting(request: GenerateRequest, context: int) -> GenerateRequest:
    """`request` only rendered, in the largest `context` the model has, and never shortened to fit."""
    limits = msgspec.structs.replace(request.limits, num_ctx=context, truncate=False)
    return msgspec.structs.replace(request, limits=limits, render_only=True)


def _options(body: wire.MessagesRequest) -> dict[str, Any]:
    budget = body.thinking.budget_tokens if body.thinking else 0
    return given_options(
        num_predict=body.max_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        stop=body.stop_sequences or None,
        think_budget=budget if budget > 0 else None,
    )


def _think(body: wire.CountRequest) -> bool | str | None:
    kind = body.thinking.type if body.thinking else ""
    if kind in {"enabled", "disabled"}:
        return kind == "enabled"
    return _EFFORTS.get(body.output_config.effort) if body.output_config else None


def _format(config: wire.OutputConfig | None) -> Any:
    if config is None or config.format.get("type") != "json_schema":
        return None
    return config.format.get("schema")


def _tools(body: wire.CountRequest) -> list[dict[str, Any]]:
    """Tools in Ollama's form. Those Anthropic runs itself are refused or, where they are only helpers, left out."""
    tools = []
    for tool in body.tools:
        if tool.type.startswith("web_search"):
            raise HTTPError(400, NO_WEB_SEARCH)
        if tool.type not in {"", "custom"}:
            continue
        function: dict[str, Any] = {"name": tool.name, "description": tool.description}
        function |= {"parameters": tool.input_schema, "strict": tool.strict is True}
        # A schema reads to a plain object, checked as in Ollama's API.
        tools.append(cast(dict[str, Any], gojson.read({"type": "function", "function": function}, ollama.Tool)))
    return tools


def _choice(body: wire.CountRequest) -> ToolChoice:
    kind = body.tool_choice.get("type")
    if kind not in (None, "auto", "any", "tool", "none"):
        raise HTTPError(400, 'tool_choice.type must be "auto", "any", "tool" or "none"')
    choice = {"name": body.tool_choice.get("name")} if kind == "tool" else "required" if kind == "any" else kind
    return read_choice(_tools(body), choice)


def _turn(turn: wire.MessageParam) -> list[Message]:
    """The messages of one turn."""
    blocks = turn.content if isinstance(turn.content, list) else [turn.content]
    results: list[Message] = []
    calls: list[ToolCall] = []
    thoughts: list[str] = []
    for block in blocks:
        match block:
            case {"type": "tool_result" | "web_search_tool_result"}:
                results.append(_result(block))
            case {"type": "tool_use" | "server_tool_use"}:
                calls.append(_call(block))
            case {"type": "thinking", "thinking": str(thought)}:
                thoughts.append(thought)
    text = _join(blocks)
    if results and not (text.text or text.images or calls):
        return results
    message = Message(
        role=turn.role.lower(), content=text.text, thinking="".join(thoughts), images=text.images, tool_calls=calls
    )
    return [*results, message]


def _call(block: dict[str, Any]) -> ToolCall:
    for field in ("id", "name"):
        if not isinstance(block.get(field), str) or not block[field]:
            raise HTTPError(400, f"tool_use block missing required '{field}' field")
    arguments = block.get("input")
    return ToolCall(block["name"], arguments if isinstance(arguments, dict) else {}, block["id"])


def _result(block: dict[str, Any]) -> Message:
    content = block.get("content")
    text = _join(content if isinstance(content, list) else [content])
    return Message(role="tool", content=text.text, images=text.images, tool_call_id=str(block.get("tool_use_id") or ""))


def _join(blocks: Sequence[Any]) -> MessageContent:
    """Texts and images of blocks; a bare string counts as a text block."""
    texts: list[str] = []
    images: list[bytes] = []
    for block in blocks:
        match block:
            case str(text) | {"type": "text", "text": str(text)}:
                texts.append(text)
            case {"type": "image"}:
                images.append(_image(block.get("source")))
    return MessageContent("".join(texts), images)


def _image(source: Any) -> bytes:
    if not isinstance(source, dict):
        raise HTTPError(400, "invalid image source")
    if source.get("type") != "base64":
        kind = source.get("type")
        raise HTTPError(400, f"invalid image source type: {kind}. Only base64 images are supported.")
    try:
        return read_base64(source.get("data"))
    except (ValueError, TypeError) as error:
        raise HTTPError(400, f"invalid base64 image data: {error}") from None
