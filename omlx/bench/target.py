"""One model of one server, in Ollama's or OpenAI's dialect, and what it answers: with the moment of every piece."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from omlx.bench.prompts import PromptWriter
from omlx.bench.stream import StreamError, post_lines

Api = Literal["ollama", "openai"]
Messages = Sequence[dict[str, Any]]

TIMEOUT_S = 1800.0
_PATHS: dict[Api, str] = {"ollama": "/api/chat", "openai": "/v1/chat/completions"}


class BenchTarget(msgspec.Struct, frozen=True, kw_only=True):
    """`url` has no path; `context` in tokens is what an Ollama server is asked to hold (0: what it likes).

    Every request of a run asks for the same context: an Ollama server loads the model again for another one.
    """

    url: str
    api: Api
    model: str
    key: str = ""
    context: int = 0
    priority: str = ""
    """The class of its requests, for an oMLX; "": the usual one."""


class TimedReply(msgspec.Struct, kw_only=True):
    """One answer. Moments are of time.perf_counter; `times` has one for every piece of text, thinking included."""

    asked: float
    times: list[float]
    tokens: int
    """As the server counts them; pieces where it does not."""
    prompt_tokens: int = 0
    """0: the server does not say."""
    cached_tokens: int = 0
    text: str = ""

    @property
    def first_token_s(self) -> float:
        """Seconds until the first piece with text: role chunks, empty ones and keep-alives are none."""
        return self.times[0] - self.asked

    @property
    def whole_s(self) -> float:
        return self.times[-1] - self.asked


class _OllamaMessage(msgspec.Struct, frozen=True):
    content: str = ""
    thinking: str = ""
    tool_calls: list[Any] = []


class _OllamaLine(msgspec.Struct, frozen=True):
    message: _OllamaMessage = _OllamaMessage()
    done: bool = False
    error: str = ""
    prompt_eval_count: int = 0
    cached_tokens: int = 0
    eval_count: int = 0


class _ErrorText(msgspec.Struct, frozen=True):
    message: str = ""


class _StreamError(msgspec.Struct, frozen=True):
    error: str | _ErrorText = ""


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None


class _StreamChoice(msgspec.Struct, frozen=True):
    delta: _Delta = _Delta()
    finish_reason: str | None = None


class _Cached(msgspec.Struct, frozen=True):
    cached_tokens: int | None = 0


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Cached | None = None


class _OpenaiChunk(msgspec.Struct, frozen=True):
    choices: list[_StreamChoice] = []
    usage: _Usage | None = None
    error: Any = None


_ollama_line = msgspec.json.Decoder(_OllamaLine)
_openai_chunk = msgspec.json.Decoder(_OpenaiChunk)


async def ask(
    target: BenchTarget,
    messages: Messages,
    tokens: int,
    *,
    begun: asyncio.Event | None = None,
    timeout_s: float = TIMEOUT_S,
) -> TimedReply:
    """Stream an answer of at most `tokens` tokens, greedily; `begun` is set with the first text.

    Raises StreamError where the server refuses, breaks off or answers without any text.
    """
    body = msgspec.json.encode(_body(target, messages, tokens))
    headers = {"Authorization": f"Bearer {target.key}"} if target.key else {}
    if target.priority:
        headers["X-OMLX-Priority"] = target.priority
    reply = TimedReply(asked=time.perf_counter(), times=[], tokens=0)
    pieces: list[str] = []
    ended = False
    try:
        async for moment, line in post_lines(target.url + _PATHS[target.api], body, headers, timeout_s=timeout_s):
            text, last = _read_ollama(line, reply) if target.api == "ollama" else _read_openai(line, reply)
            ended = ended or last
            if text:
                if begun is not None:
                    begun.set()
                reply.times.append(moment)
                pieces.append(text)
    except StreamError as error:
        raise StreamError(_sentence(str(error)), error.status) from error
    except msgspec.DecodeError as error:
        raise StreamError(f"the server sent a line that cannot be read: {error}") from error
    if not ended:
        raise StreamError("the server ended the answer before it was complete")
    if not reply.times:
        raise StreamError("the answer has no text: nothing to measure")
    reply.tokens = reply.tokens or len(reply.times)
    reply.text = "".join(pieces)
    return reply


def _sentence(body: str) -> str:
    """What an error's body says, in whatever form it says it."""
    try:
        error = msgspec.json.decode(body, type=_StreamError).error
    except msgspec.DecodeError:
        return body
    return (error if isinstance(error, str) else error.message) or body


def _body(target: BenchTarget, messages: Messages, tokens: int) -> dict[str, Any]:
    common = {"model": target.model, "messages": list(messages), "stream": True}
    if target.api == "openai":
        return common | {"max_tokens": tokens, "temperature": 0, "stream_options": {"include_usage": True}}
    options = {"num_predict": tokens, "temperature": 0} | ({"num_ctx": target.context} if target.context else {})
    return common | {"options": options}


def _read_ollama(line: bytes, reply: TimedReply) -> tuple[str, bool]:
    """The line's text and whether it is the last one."""
    chunk = _ollama_line.decode(line)
    if chunk.error:
        raise StreamError(chunk.error)
    if chunk.done:
        reply.tokens, reply.prompt_tokens = chunk.eval_count, chunk.prompt_eval_count
        reply.cached_tokens = chunk.cached_tokens
    message = chunk.message
    return message.content or message.thinking or str(message.tool_calls or ""), chunk.done


def _read_openai(line: bytes, reply: TimedReply) -> tuple[str, bool]:
    if not line.startswith(b"data:"):
        return "", False
    data = line[5:].strip()
    if data == b"[DONE]":
        return "", True
    chunk = _openai_chunk.decode(data)
    if chunk.error:
        raise StreamError(str(chunk.error))
    if chunk.usage is not None:
        reply.tokens, reply.prompt_tokens = chunk.usage.completion_tokens, chunk.usage.prompt_tokens
        reply.cached_tokens = (chunk.usage.prompt_tokens_details or _Cached()).cached_tokens or 0
    if not chunk.choices:
        return "", False
    delta, last = chunk.choices[0].delta, chunk.choices[0].finish_reason is not None
    text = delta.content or delta.reasoning_content or delta.reasoning or str(delta.tool_calls or "")
    return text, last


async def calibrate(target: BenchTarget, writer: PromptWriter) -> bool:
    """Let the writer learn how long its words are for this model; False where the server does not count prompts."""
    words = (8, 56)
    first, second = [
        (await ask(target, [{"role": "user", "content": writer.prompt_of(count)}], 4)).prompt_tokens for count in words
    ]
    if first and second:
        writer.learn(words, (first, second))
    return bool(first and second)
