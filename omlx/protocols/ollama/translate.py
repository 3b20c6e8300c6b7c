"""The Ollama dialect: its requests become the internal `GenerateRequest`, internal events become its answers.

Pure functions over wire structs (`omlx.protocols.ollama.wire`) and a model's facts; the only place that knows how
Ollama words an answer. A request is checked in Ollama's order, so that a request with several mistakes gets the same
error as there.
"""

from __future__ import annotations

import time
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal, TypedDict

import msgspec

from omlx.messages.request import Delta, Finish, GenerateRequest, Message, TokenLogprob, ToolCall
from omlx.protocols.generation import (
    ChatInput,
    ModelFacts,
    UnsupportedTools,
    chat_request,
    check_capabilities,
    check_sight,
    check_template,
    check_thinking,
    preset_messages,
    read_format,
    think_level,
    thinking_wanted,
)
from omlx.protocols.http_error import HTTPError
from omlx.protocols.media import read_video
from omlx.protocols.ollama import wire as wire
from omlx.protocols.options import parse_options
from omlx.protocols.template_kwargs import read_template_kwargs
from omlx.protocols.tools import ToolChoice, new_call_id

RAW_CONFLICT = "raw mode does not support template, system, or context"


# ---------------------------------------------------------------- requests
def unloads(request: wire.OllamaGenerateRequest | wire.ChatRequest) -> bool:
    """Whether the request only asks to unload the model: nothing to generate, `keep_alive` 0."""
    return request.keep_alive == 0 and not _has_input(request)


def _has_input(request: wire.OllamaGenerateRequest | wire.ChatRequest) -> bool:
    return bool(request.messages if isinstance(request, wire.ChatRequest) else request.prompt)


def generation(request: wire.OllamaGenerateRequest, model: ModelFacts) -> GenerateRequest | None:
    """The internal request of /api/generate; None to load the model only. Raises HTTPError, OptionError."""
    if request.raw and (request.template or request.system or request.context):
        raise HTTPError(400, RAW_CONFLICT)
    check_thinking(request.model, model, request.think)
    check_capabilities(request.model, model, "generate", ["insert"] if request.suffix else [])
    kwargs = read_template_kwargs(request.chat_template_kwargs)
    sampling, limits = parse_options(
        _options(request), model.parameters, truncate=request.truncate, shift=request.shift
    )
    if not request.prompt:
        return None
    check_sight(model, images=request.images)
    if request.template:
        try:
            check_template(request.template)
        except ValueError as error:
            raise HTTPError(500, str(error)) from None
    messages = [Message(role="user", content=request.prompt, images=request.images)]
    if not request.raw:
        system = request.system or model.system
        shown = [] if request.context else preset_messages(model)
        messages = [*([Message(role="system", content=system)] if system else []), *shown, *messages]
    return GenerateRequest(
        id=0,
        messages=messages,
        raw_prompt=request.prompt if request.raw else None,
        context=request.context,
        suffix=request.suffix or None,
        template=request.template or None,
        think=think_level(thinking_wanted(request.think, kwargs, model), model),
        template_kwargs=kwargs,
        **read_format(request.format),
        sampling=sampling,
        limits=limits,
        logprobs=request.logprobs,
        top_logprobs=request.top_logprobs,
        return_context=not request.raw,
        render_only=request.debug_render_only,
    )


def conversation(
    request: wire.ChatRequest, model: ModelFacts, unsupported_tools: UnsupportedTools = "error"
) -> GenerateRequest | None:
    """The internal request of /api/chat; None where the model is only to be loaded. Raises HTTPError, OptionError."""
    return chat_request(
        request.model,
        model,
        ChatInput([_message(message) for message in request.messages], ToolChoice(request.tools), request.think),
        options=_options(request),
        format=request.format,
        template_kwargs=request.chat_template_kwargs,
        unsupported_tools=unsupported_tools,
        truncate=request.truncate,
        shift=request.shift,
        logprobs=request.logprobs,
        top_logprobs=request.top_logprobs,
        render_only=request.debug_render_only,
    )


def _options(request: wire.OllamaGenerateRequest | wire.ChatRequest) -> dict[str, Any]:
    if request.think_budget is None:
        return request.options
    return {**request.options, "think_budget": request.think_budget}


def _message(message: wire.OllamaMessage) -> Message:
    return Message(
        role=message.role.lower(),
        content=message.content,
        thinking=message.thinking,
        images=message.images,
        videos=[read_video(video.frames, video.fps, video.max_frames) for video in message.videos],
        tool_calls=[
            ToolCall(call.function.name, call.function.arguments, call.id if isinstance(call.id, str) else "")
            for call in message.tool_calls
        ],
        tool_name=message.tool_name,
        tool_call_id=message.tool_call_id,
    )


# ---------------------------------------------------------------- answers
class Collected:
    """All deltas of one answer, joined, for `stream: false`."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._thinking: list[str] = []
        self.tool_calls: list[ToolCall] = []
        self.logprobs: list[TokenLogprob] = []

    def add(self, delta: Delta) -> None:
        self._content.append(delta.content)
        self._thinking.append(delta.thinking)
        self.tool_calls += delta.tool_calls
        self.logprobs += delta.logprobs

    def delta(self) -> Delta:
        return Delta(0, "".join(self._content), "".join(self._thinking), self.tool_calls, self.logprobs)


class ChatAnswer:
    """Writes the objects of one /api/chat answer. `started_ns` is on the monotonic clock."""

    def __init__(self, model: str, started_ns: int, image_count: int = 0) -> None:
        self.model = model
        self._started_ns = started_ns
        self._image_count = image_count
        self._calls = 0

    def chunk(self, delta: Delta) -> wire.ChatResponse:
        return wire.ChatResponse(
            model=self.model,
            created_at=now(),
            message=self._message(delta),
            done=False,
            logprobs=write_logprobs(delta.logprobs),
        )

    def final(self, finish: Finish, load_ns: int, rest: Delta | None = None) -> wire.ChatResponse:
        """The last object; for `stream: false` it carries all of the answer (`rest`)."""
        if finish.rendered is not None:
            return self._rendered(finish.rendered)
        delta = rest or Delta(0)
        return wire.ChatResponse(
            model=self.model,
            created_at=now(),
            message=self._message(delta),
            done=True,
            done_reason=finish.reason,
            logprobs=write_logprobs(delta.logprobs),
            **metrics(finish, load_ns, self._started_ns),
        )

    def empty(self, reason: Literal["load", "unload"]) -> wire.ChatResponse:
        """The answer to a request that only loads or unloads."""
        return wire.ChatResponse(
            model=self.model, created_at=now(), message=self._message(Delta(0)), done=True, done_reason=reason
        )

    def _rendered(self, text: str) -> wire.ChatResponse:
        debug = wire.DebugInfo(rendered_template=text, image_count=self._image_count)
        return wire.ChatResponse(
            model=self.model, created_at=now(), message=self._message(Delta(0)), done=False, debug_info=debug
        )

    def _message(self, delta: Delta) -> wire.ChatMessage:
        calls = write_tool_calls(delta.tool_calls, self._calls, with_id=True)
        self._calls += len(calls)
        return wire.ChatMessage(role="assistant", content=delta.content, thinking=delta.thinking, tool_calls=calls)


class GenerateAnswer:
    """Writes the objects of one /api/generate answer. `started_ns` is on the monotonic clock."""

    def __init__(self, model: str, started_ns: int, image_count: int = 0) -> None:
        self.model = model
        self._started_ns = started_ns
        self._image_count = image_count
        self._calls: list[ToolCall] = []

    def chunk(self, delta: Delta) -> wire.GenerateResponse:
        self._calls += delta.tool_calls
        return wire.GenerateResponse(
            model=self.model,
            created_at=now(),
            response=delta.content,
            thinking=delta.thinking,
            done=False,
            logprobs=write_logprobs(delta.logprobs),
        )

    def final(self, finish: Finish, load_ns: int, rest: Delta | None = None) -> wire.GenerateResponse:
        """The last object; for `stream: false` it carries all of the answer (`rest`)."""
        if finish.rendered is not None:
            return self._rendered(finish.rendered)
        delta = rest or Delta(0)
        return wire.GenerateResponse(
            model=self.model,
            created_at=now(),
            response=delta.content,
            thinking=delta.thinking,
            done=True,
            done_reason=finish.reason,
            context=finish.context,
            tool_calls=write_tool_calls([*self._calls, *delta.tool_calls], 0, with_id=False),
            logprobs=write_logprobs(delta.logprobs),
            **metrics(finish, load_ns, self._started_ns),
        )

    def empty(self, reason: Literal["load", "unload"]) -> wire.GenerateResponse:
        """The answer to a request that only loads or unloads."""
        return wire.GenerateResponse(model=self.model, created_at=now(), response="", done=True, done_reason=reason)

    def _rendered(self, text: str) -> wire.GenerateResponse:
        debug = wire.DebugInfo(rendered_template=text, image_count=self._image_count)
        return wire.GenerateResponse(model=self.model, created_at=now(), response="", done=False, debug_info=debug)


Answer = ChatAnswer | GenerateAnswer


def worth_a_chunk(delta: Delta) -> bool:
    """A step may end without anything to show (half a character, a held-back marker)."""
    return bool(delta.content or delta.thinking or delta.tool_calls or delta.logprobs)


class FinalMetrics(TypedDict):
    """The numbers of a final object."""

    total_duration: int
    load_duration: int
    prompt_eval_count: int
    cached_tokens: int
    prompt_eval_duration: int
    eval_count: int
    eval_duration: int


def metrics(finish: Finish, load_ns: int, started_ns: int) -> FinalMetrics:
    """The numbers of a final object. Durations are never 0: clients divide by them."""
    return {
        "total_duration": max(1, time.monotonic_ns() - started_ns),
        "load_duration": max(1, load_ns),
        "prompt_eval_count": finish.prompt_tokens,
        "cached_tokens": finish.cached_tokens,
        "prompt_eval_duration": max(1, finish.prompt_ns),
        "eval_count": finish.completion_tokens,
        "eval_duration": max(1, finish.generation_ns),
    }


def write_tool_calls(calls: list[ToolCall], first_index: int, *, with_id: bool) -> list[wire.OllamaToolCall]:
    return [
        wire.OllamaToolCall(
            id=(call.id or new_call_id()) if with_id else msgspec.UNSET,
            function=wire.ToolCallFunction(index=index, name=call.name, arguments=call.arguments),
        )
        for index, call in enumerate(calls, first_index)
    ]


def write_logprobs(tokens: list[TokenLogprob]) -> list[wire.Logprob]:
    return [
        wire.Logprob(
            token.token,
            token.logprob,
            token.bytes,
            [wire.OllamaTokenLogprob(other.token, other.logprob, other.bytes) for other in token.top],
        )
        for token in tokens
    ]


def now() -> str:
    """`created_at`: RFC 3339 in UTC, nanoseconds, trailing zeros trimmed."""
    seconds, fraction = divmod(time.time_ns(), 1_000_000_000)
    return f"{_clock(seconds)}.{fraction:09d}".rstrip("0").rstrip(".") + "Z"


@lru_cache(maxsize=2)
def _clock(seconds: int) -> str:
    """Most chunks share their second with the one before."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def local_time(when: datetime) -> str:
    """`modified_at`, `expires_at`: RFC 3339 with the server's own offset, `Z` for UTC, trailing zeros trimmed."""
    text = when.astimezone().isoformat()
    clock, offset = text[:-6], text[-6:]
    if "." in clock:
        clock = clock.rstrip("0").rstrip(".")
    return clock + ("Z" if offset == "+00:00" else offset)
