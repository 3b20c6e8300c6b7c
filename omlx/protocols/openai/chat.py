"""The OpenAI dialect of /v1/chat/completions: its requests become internal ones, internal events its chunks."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from omlx.messages.request import Delta, Finish, GenerateRequest, Message, ToolCall, Video
from omlx.protocols.common import MessageContent
from omlx.protocols.generation import NO_AUDIO, ChatInput, ModelFacts, UnsupportedTools, chat_request, given_options
from omlx.protocols.http_error import HTTPError
from omlx.protocols.ollama.wire import DebugInfo
from omlx.protocols.openai import common as common
from omlx.protocols.openai import wire as wire
from omlx.protocols.tools import read_choice

NO_MESSAGES = "[] is too short - 'messages'"


# ---------------------------------------------------------------- requests
def read_chat(body: wire.ChatCompletionRequest) -> ChatInput:
    """Messages, tools and effort of a chat completion. Raises HTTPError."""
    if not body.messages:
        raise HTTPError(400, NO_MESSAGES)
    effort = (body.reasoning.effort if body.reasoning else "") or body.reasoning_effort
    return ChatInput(
        [_message(message) for message in body.messages],
        think=common.read_effort(effort),
        choice=read_choice(body.tools, body.tool_choice),
    )


def generations(
    body: wire.ChatCompletionRequest,
    chat: ChatInput,
    model: ModelFacts,
    unsupported_tools: UnsupportedTools = "error",
) -> list[GenerateRequest]:
    """The internal requests, one per choice. Raises HTTPError, OptionError."""
    count = common.check_count(body.n)
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    request = chat_request(
        body.model,
        model,
        chat,
        options=options(body, limit, think_budget=body.reasoning.max_tokens if body.reasoning else None),
        format=_format(body.response_format),
        template_kwargs=body.chat_template_kwargs,
        unsupported_tools=unsupported_tools,
        truncate=body.truncate,
        one_call=not body.parallel_tool_calls,
        logprobs=body.logprobs,
        top_logprobs=body.top_logprobs,
        render_only=body.debug_render_only,
    )
    if request is None:
        raise HTTPError(400, NO_MESSAGES)
    return common.choices(common.bias(request, body.logit_bias), 1 if request.render_only else count)


def options(
    body: wire.ChatCompletionRequest | wire.CompletionRequest, limit: int | None, think_budget: int | None = None
) -> dict[str, Any]:
    """Options by Ollama's names; temperature and top_p are 1 where they are not given, whatever the Modelfile says."""
    stop = [body.stop] if isinstance(body.stop, str) else body.stop
    return given_options(
        num_predict=limit,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        frequency_penalty=body.frequency_penalty,
        presence_penalty=body.presence_penalty,
        seed=body.seed,
        stop=[item for item in stop if isinstance(item, str)] if isinstance(stop, list) else None,
        think_budget=think_budget,
    )


def _format(wanted: wire.ResponseFormat | None) -> Any:
    match wanted.type if wanted else "":
        case "json_object":
            return "json"
        case "json_schema" if wanted:
            return wanted.json_schema.get("schema")
        case "grammar":
            return msgspec.to_builtins(wanted)
    return None


def _message(message: wire.OpenAIMessage) -> Message:
    content = _content(message)
    return Message(
        role="system" if message.role == "developer" else message.role.lower(),
        content=content.text,
        thinking=message.reasoning or message.reasoning_content,
        images=content.images,
        videos=[*content.videos],
        tool_calls=[_call(call) for call in message.tool_calls],
        tool_name=message.name if message.role == "tool" else "",
        tool_call_id=message.tool_call_id,
    )


def _content(message: wire.OpenAIMessage) -> MessageContent:
    content = message.content
    if isinstance(content, str):
        return MessageContent(content, [])
    if isinstance(content, list):
        return _join(content)
    if content is None and message.tool_calls:
        return MessageContent("", [])
    kinds = {type(None): "<nil>", bool: "bool", int: "float64", float: "float64"}
    raise HTTPError(400, f"invalid message content type: {kinds.get(type(content), 'map[string]interface {}')}")


def _join(parts: Sequence[Any]) -> MessageContent:
    """One message of all its parts, a line for each text."""
    texts: list[str] = []
    images: list[bytes] = []
    videos: list[Video] = []
    for part in parts:
        match part:
            case {"type": "text", "text": str(text)} | {"type": "refusal", "refusal": str(text)}:
                texts.append(text)
            case {"type": "image_url", "image_url": {"url": url}} | {"type": "image_url", "image_url": url}:
                images.append(common.read_image(url))
            case {"type": "video", "video": _} | {"type": "video_url", "video_url": _}:
                videos.append(common.read_video(part))
            case {"type": "input_audio"}:
                raise HTTPError(400, NO_AUDIO)
            case _:
                raise HTTPError(400, "invalid message format")
    return MessageContent("\n".join(texts), images, videos)


def _call(call: dict[str, Any]) -> ToolCall:
    function = call.get("function")
    if not isinstance(function, dict):
        raise HTTPError(400, "invalid tool call arguments")
    arguments = common.read_arguments(function.get("arguments"), "invalid tool call arguments")
    return ToolCall(str(function.get("name") or ""), arguments, str(call.get("id") or ""))


# ---------------------------------------------------------------- answers
class ChatCompletionAnswer:
    """Writes one chat completion, streamed (`delta`, `finish`, `end`) or `whole`."""

    def __init__(self, body: wire.ChatCompletionRequest) -> None:
        self.id = f"chatcmpl-{secrets.token_hex(12)}"
        self.created = int(time.time())
        self.model = body.model
        self._images = sum(
            1
            for message in body.messages
            if isinstance(message.content, list)
            for part in message.content
            if isinstance(part, dict) and part.get("type") == "image_url"
        )
        self._logprobs = body.logprobs
        self._with_usage = body.stream_options is not None and body.stream_options.include_usage
        self._begun: set[int] = set()
        self._calls: dict[int, int] = {}
        self._finishes: list[Finish] = []

    def delta(self, choice: int, delta: Delta) -> list[wire.ChatChunk]:
        parts = []
        if delta.thinking:
            parts.append(wire.ChatDelta(content="", reasoning=delta.thinking))
        if delta.content:
            parts.append(wire.ChatDelta(content=delta.content))
        calls = self._write_calls(choice, delta)
        if calls:
            parts.append(wire.ChatDelta(content="", tool_calls=calls))
        if not parts and delta.logprobs and self._logprobs:
            parts.append(wire.ChatDelta(content=""))
        chunks = [self._chunk(choice, part) for part in parts]
        if chunks and delta.logprobs and self._logprobs:
            chunks[0].choices[0].logprobs = common.write_logprobs(delta.logprobs)
        return chunks

    def finish(self, choice: int, finish: Finish, load_ns: int) -> list[wire.ChatChunk]:
        self._finishes.append(finish)
        first = [] if choice in self._begun else [self._chunk(choice, wire.ChatDelta(content=""))]
        return [*first, self._chunk(choice, wire.ChatDelta(), self._reason(choice, finish))]

    def end(self) -> list[wire.ChatChunk]:
        if not self._with_usage:
            return []
        total = common.usage(self._finishes, shared_prompt=True)
        return [self._envelope([], total)]

    def whole(self, answers: Sequence[tuple[Delta, Finish]]) -> wire.ChatCompletion:
        answer = wire.ChatCompletion(
            id=self.id,
            created=self.created,
            model=self.model,
            system_fingerprint=common.FINGERPRINT,
            choices=[self._choice(choice, delta, finish) for choice, (delta, finish) in enumerate(answers)],
            usage=common.usage([finish for _, finish in answers], shared_prompt=True),
        )
        rendered = answers[0][1].rendered
        if rendered is not None:
            answer.debug_info = DebugInfo(rendered, self._images)
        return answer

    def _choice(self, choice: int, delta: Delta, finish: Finish) -> wire.ChatChoice:
        message = wire.ChatCompletionMessage(
            role="assistant",
            content=delta.content,
            reasoning=delta.thinking or UNSET,
            tool_calls=self._write_calls(choice, delta) or UNSET,
        )
        logprobs = common.write_logprobs(delta.logprobs) if self._logprobs else UNSET
        return wire.ChatChoice(
            index=choice, message=message, finish_reason=self._reason(choice, finish), logprobs=logprobs
        )

    def _write_calls(self, choice: int, delta: Delta) -> list[wire.OpenAIToolCall]:
        before = self._calls.get(choice, 0)
        calls = common.write_calls(delta.tool_calls, before)
        self._calls[choice] = before + len(calls)
        return calls

    def _reason(self, choice: int, finish: Finish) -> str:
        return "tool_calls" if finish.reason == "stop" and self._calls.get(choice) else finish.reason

    def _chunk(self, choice: int, delta: wire.ChatDelta, reason: str | None = None) -> wire.ChatChunk:
        if choice not in self._begun:
            self._begun.add(choice)
            delta.role = "assistant"
        return self._envelope([wire.ChatChunkChoice(index=choice, delta=delta, finish_reason=reason)])

    def _envelope(
        self, choices: list[wire.ChatChunkChoice], usage: wire.CompletionUsage | None = None
    ) -> wire.ChatChunk:
        return wire.ChatChunk(
            id=self.id,
            created=self.created,
            model=self.model,
            system_fingerprint=common.FINGERPRINT,
            choices=choices,
            usage=usage or UNSET,
        )
