"""The Ollama dialect: its requests become the internal `GenerateRequest`, internal events become its answers.

Pure functions over wire structs (`omlx.protocols.ollama.wire`) and a model's facts; the only place that knows how
Ollama words an answer. A request is checked in Ollama's order, so that a request with several mistakes gets the same
error as there.
"""

from __future__ import annotations

import json
import re
import secrets
import string
import time
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal, Protocol, TypedDict

import msgspec

from omlx.messages.request import Delta, Finish, GenerateRequest, Message, TextGrammar, TokenLogprob, ToolCall, Video
from omlx.prompting.errors import TemplateError
from omlx.protocols.http_error import HTTPError
from omlx.protocols.ollama import wire as wire
from omlx.protocols.options import Options, parse_options
from omlx.protocols.template_kwargs import read_template_kwargs, think_of

PULL_AGAIN = ". Pull the model again to get the latest version with full thinking support"
RAW_CONFLICT = "raw mode does not support template, system, or context"
NO_IMAGES = "this model does not support image input"
NO_VIDEOS = "this model does not support video input"
MOST_FPS = 120
_ID_LETTERS = string.ascii_lowercase + string.digits
_THOUGHT = re.compile(r"\A\s*<think>.*?</think>\s*", re.DOTALL)


class ModelFacts(Protocol):
    """What of a `ModelSpec` the dialect looks at."""

    @property
    def name(self) -> str: ...
    @property
    def full_name(self) -> str: ...
    @property
    def details(self) -> Any: ...
    @property
    def capabilities(self) -> list[str]: ...
    @property
    def system(self) -> str: ...
    @property
    def parameters(self) -> dict[str, Any]: ...
    @property
    def messages(self) -> list[Any]: ...


# ---------------------------------------------------------------- requests
def check_top_logprobs(count: int) -> None:
    """Comes before the model is looked up. Raises HTTPError."""
    if not 0 <= count <= 20:
        raise HTTPError(400, "top_logprobs must be between 0 and 20")


def unloads(request: wire.GenerateRequest | wire.ChatRequest) -> bool:
    """Whether the request only asks to unload the model: nothing to generate, `keep_alive` 0."""
    return request.keep_alive == 0 and not _has_input(request)


def _has_input(request: wire.GenerateRequest | wire.ChatRequest) -> bool:
    return bool(request.messages if isinstance(request, wire.ChatRequest) else request.prompt)


def generation(request: wire.GenerateRequest, model: ModelFacts) -> GenerateRequest | None:
    """The internal request of /api/generate; None to load the model only. Raises HTTPError, OptionError."""
    if request.raw and (request.template or request.system or request.context):
        raise HTTPError(400, RAW_CONFLICT)
    _check_thinking(request, model)
    _check_capabilities(request.model, model, "generate", ["insert"] if request.suffix else [])
    sampling, limits = _options(request, model)
    if not request.prompt:
        return None
    _check_sight(model, images=bool(request.images))
    if request.template:
        try:
            check_template(request.template)
        except ValueError as error:
            raise HTTPError(500, str(error)) from None
    messages = [Message(role="user", content=request.prompt, images=request.images)]
    if not request.raw:
        system = request.system or model.system
        shown = [] if request.context else _preset(model)
        messages = [*([Message(role="system", content=system)] if system else []), *shown, *messages]
    return GenerateRequest(
        id=0,
        messages=messages,
        raw_prompt=request.prompt if request.raw else None,
        context=request.context,
        suffix=request.suffix or None,
        template=request.template or None,
        think=_level(request.think, model),
        **read_format(request.format),
        sampling=sampling,
        limits=limits,
        logprobs=request.logprobs,
        top_logprobs=request.top_logprobs,
        return_context=not request.raw,
        render_only=request.debug_render_only,
    )


UnsupportedTools = Literal["error", "ignore", "emulate"]


def conversation(
    request: wire.ChatRequest, model: ModelFacts, unsupported_tools: UnsupportedTools = "error"
) -> GenerateRequest | None:
    """The internal request of /api/chat; None where the model is only to be loaded. Raises HTTPError, OptionError.

    `unsupported_tools`: what becomes of tools that the model does not know.
    """
    _check_thinking(request, model)
    tools, strict = _tools(request.tools)
    emulate = False
    if "tools" not in model.capabilities and unsupported_tools != "error":
        tools, emulate = ([], False) if unsupported_tools == "ignore" else (tools, bool(tools))
    _check_capabilities(request.model, model, "chat", ["tools"] if tools and not emulate else [])
    sampling, limits = _options(request, model)
    kwargs = read_template_kwargs(request.chat_template_kwargs)
    think = request.think
    if think is None and "thinking" in model.capabilities:
        think = think_of(kwargs)
    if not request.messages:
        return None
    given = [_message(message) for message in request.messages]
    images, videos = any(message.images for message in given), any(message.videos for message in given)
    _check_sight(model, images=images, videos=videos)
    messages = [*_preset(model), *given]
    if model.system and given[0].role != "system":
        messages.insert(0, Message(role="system", content=model.system))
    return GenerateRequest(
        id=0,
        messages=_without_old_thoughts(messages, model),
        tools=tools,
        strict_tools=strict and bool(tools),
        emulate_tools=emulate,
        think=_level(think, model),
        template_kwargs=kwargs,
        **read_format(request.format),
        sampling=sampling,
        limits=limits,
        logprobs=request.logprobs,
        top_logprobs=request.top_logprobs,
        render_only=request.debug_render_only,
    )


def _tools(tools: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], bool]:
    """The tools as templates show them, and whether one of them is strict."""
    functions = [tool.get("function", {}) for tool in tools]
    plain = [
        {**tool, "function": {key: value for key, value in function.items() if key != "strict"}}
        for tool, function in zip(tools, functions, strict=True)
    ]
    return plain, any(function.get("strict") is True for function in functions)


def _options(request: wire.GenerateRequest | wire.ChatRequest, model: ModelFacts) -> Options:
    options = request.options
    if request.think_budget is not None:
        options = {**options, "think_budget": request.think_budget}
    return parse_options(options, model.parameters, truncate=request.truncate, shift=request.shift)


def check_template(source: str) -> None:
    """Raises ValueError, with Go's message, where `source` is no Go template."""
    from omlx.prompting.gotemplate import GoTemplate  # few requests bring one

    try:
        GoTemplate(source)
    except TemplateError as error:
        raise ValueError(str(error)) from None


def _check_thinking(request: wire.GenerateRequest | wire.ChatRequest, model: ModelFacts) -> None:
    if request.think and "thinking" not in model.capabilities:
        hint = PULL_AGAIN if _thinks_in_text(model) else ""
        raise HTTPError(400, f'"{request.model}" does not support thinking{hint}')


def _check_capabilities(asked: str, model: ModelFacts, verb: str, needed: list[str]) -> None:
    if "completion" not in model.capabilities:
        raise HTTPError(400, f'"{asked}" does not support {verb}')
    missing = [name for name in needed if name not in model.capabilities]
    if missing:
        raise HTTPError(400, f"{model.full_name} does not support " + "\n".join(missing))


def _check_sight(model: ModelFacts, *, images: bool, videos: bool = False) -> None:
    if (images or videos) and "vision" not in model.capabilities:
        raise HTTPError(400, NO_IMAGES if images else NO_VIDEOS)


def _level(think: bool | str | None, model: ModelFacts) -> bool | str | None:
    """gpt-oss knows no "max"."""
    family = str(model.details.family).replace("-", "").replace("_", "")
    return "high" if think == "max" and family == "gptoss" else think


_SYNTAXES = ("regex", "lark", "gbnf")


class _Constraint(TypedDict):
    """The fields of a request that constrain its answer."""

    format: Literal["json"] | dict[str, Any] | None
    grammar: TextGrammar | None


def read_format(value: Any) -> _Constraint:
    """`format` as the engine takes it. Raises HTTPError (with Ollama's status 500 where Ollama refuses as well).

    Beside Ollama's forms `{"type": "grammar", "syntax": "regex" | "lark" | "gbnf", "definition": text}`, as OpenAI
    writes the grammar of a custom tool; no JSON schema has that type.
    """
    if value is None or value == "":
        return {"format": None, "grammar": None}
    if isinstance(value, dict) and value.get("type") == "grammar":
        syntax, text = value.get("syntax"), value.get("definition")
        if syntax not in _SYNTAXES or not isinstance(text, str) or not text:
            raise HTTPError(
                400, 'invalid format: a grammar needs "syntax" ("regex", "lark" or "gbnf") and "definition"'
            )
        return {"format": None, "grammar": TextGrammar(syntax, text)}
    if value == "json" or isinstance(value, dict):
        return {"format": value, "grammar": None}
    quoted = json.dumps(json.dumps(value, ensure_ascii=False), ensure_ascii=False)
    raise HTTPError(500, f'invalid format: {quoted}; expected "json" or a valid JSON Schema object')


def _video(given: wire.Video) -> Video:
    if not 0 < given.fps <= MOST_FPS:
        raise HTTPError(400, f"the fps of a video must be above 0 and at most {MOST_FPS}")
    if not given.frames or given.max_frames < 0:
        raise HTTPError(400, "a video needs frames, and max_frames must not be negative")
    return Video(given.frames, given.fps, given.max_frames)


def _message(given: wire.Message) -> Message:
    return Message(
        role=given.role.lower(),
        content=given.content,
        thinking=given.thinking,
        images=given.images,
        videos=[_video(video) for video in given.videos],
        tool_calls=[
            ToolCall(call.function.name, call.function.arguments, call.id if isinstance(call.id, str) else "")
            for call in given.tool_calls
        ],
        tool_name=given.tool_name,
        tool_call_id=given.tool_call_id,
    )


def _preset(model: ModelFacts) -> list[Message]:
    """The Modelfile's MESSAGEs."""
    return [Message(role=str(item["role"]), content=str(item["content"])) for item in model.messages]


def _thinks_in_text(model: ModelFacts) -> bool:
    """Models that write their thoughts as text: clients send them back inside the answer."""
    return model.details.family == "qwen3" or model.name.rpartition("/")[2].startswith("deepseek-r1:")


def _without_old_thoughts(messages: list[Message], model: ModelFacts) -> list[Message]:
    """Thoughts of turns before the last question cost context and confuse these models."""
    if not _thinks_in_text(model):
        return messages
    last_question = max((place for place, message in enumerate(messages) if message.role == "user"), default=-1)
    return [
        msgspec.structs.replace(message, content=_THOUGHT.sub("", message.content))
        if message.role == "assistant" and place < last_question
        else message
        for place, message in enumerate(messages)
    ]


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


class Metrics(TypedDict):
    """The numbers of a final object."""

    total_duration: int
    load_duration: int
    prompt_eval_count: int
    cached_tokens: int
    prompt_eval_duration: int
    eval_count: int
    eval_duration: int


def metrics(finish: Finish, load_ns: int, started_ns: int) -> Metrics:
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


def write_tool_calls(calls: list[ToolCall], first_index: int, *, with_id: bool) -> list[wire.ToolCall]:
    return [
        wire.ToolCall(
            id=(call.id or new_call_id()) if with_id else msgspec.UNSET,
            function=wire.ToolCallFunction(index=index, name=call.name, arguments=call.arguments),
        )
        for index, call in enumerate(calls, first_index)
    ]


def new_call_id() -> str:
    """`call_` and eight random letters or digits."""
    return "call_" + "".join(secrets.choice(_ID_LETTERS) for _ in range(8))


def write_logprobs(tokens: list[TokenLogprob]) -> list[wire.Logprob]:
    return [
        wire.Logprob(
            token.token,
            token.logprob,
            token.bytes,
            [wire.TokenLogprob(other.token, other.logprob, other.bytes) for other in token.top],
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
