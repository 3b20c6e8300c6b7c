"""What the OpenAI routes share: reading parts, effort and stop; writing usage, tool calls and log probabilities."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import msgspec
from msgspec import UNSET

from omlx.messages.request import Finish, GenerateRequest, TokenLogprob, ToolCall, Video
from omlx.protocols import media
from omlx.protocols.http_error import HTTPError
from omlx.protocols.openai import wire as wire
from omlx.protocols.tools import arguments_text, new_call_id

FINGERPRINT = "fp_ollama"
NO_URLS = "image URLs are not currently supported, please use base64 encoded data instead"
NO_VIDEO_URLS = "videos are taken as data URIs (a file, or base64 frames behind commas) or as lists of frames"
MOST_CHOICES = 128
_DATA_URI = re.compile(r"\s*data:[^,]*;\s*base64\s*,\s*", re.IGNORECASE)
"""The beginning of a data URI. Its media type and parameters are not looked at: the bytes decide what a file is."""
_LONGEST_PREFIX = 1000
"""Characters that a media type with its parameters may have."""
_EFFORTS: dict[str, bool | str] = {
    "none": False,
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "max": "max",
    "xhigh": "max",
    "ultra": "max",
}


def read_image(url: Any) -> bytes:
    """The bytes of a data URI, of whatever media type. Raises HTTPError."""
    text = url if isinstance(url, str) else ""
    if text[:8].lower().startswith(("http://", "https://")):
        raise HTTPError(400, NO_URLS)
    prefix = _DATA_URI.match(text, 0, _LONGEST_PREFIX)
    if prefix is None:
        raise HTTPError(400, "invalid image input")
    data = text[prefix.end() :].rstrip()
    try:
        return media.read_base64(unquote(data) if "%" in data else data)
    except ValueError:
        raise HTTPError(400, "invalid image input") from None


def read_video(part: Mapping[str, Any]) -> Video:
    """A video part: `video` is a list of frames (data URIs), `video_url` one URI with a file, or with frames
    behind commas, as in vLLM. Raises HTTPError."""
    source = part.get("video", part.get("video_url"))
    source = source.get("url") if isinstance(source, Mapping) else source
    if isinstance(source, str):
        prefix = _DATA_URI.match(source, 0, _LONGEST_PREFIX)
        if prefix is None:
            raise HTTPError(400, NO_VIDEO_URLS)
        source = ["data:;base64," + frame for frame in source[prefix.end() :].split(",")]
    if not isinstance(source, list):
        raise HTTPError(400, "a video must be a list of frames or a data URI")
    fps, most = part.get("fps", 2.0), part.get("max_frames", 0)
    if not isinstance(fps, (int, float)) or not isinstance(most, int):
        raise HTTPError(400, "fps and max_frames of a video must be numbers")
    return media.read_video([read_image(frame) for frame in source], float(fps), most)


def read_effort(effort: str) -> bool | str | None:
    """`reasoning.effort` as `think`; None where it is not given. Raises HTTPError."""
    if not effort:
        return None
    if effort not in _EFFORTS:
        allowed = '"minimal", "low", "medium", "high", "xhigh", "ultra", "max", or "none"'
        raise HTTPError(400, f'invalid reasoning value: "{effort}" (must be {allowed})')
    return _EFFORTS[effort]


def read_arguments(text: Any, refusal: str) -> dict[str, Any]:
    """A tool call's arguments from their JSON text; some clients send "" or the object itself. Raises HTTPError."""
    if isinstance(text, dict):
        return text
    try:
        value = msgspec.json.decode(text) if text else {}
    except (msgspec.DecodeError, TypeError):
        value = ()
    if value is not None and not isinstance(value, dict):
        raise HTTPError(400, refusal)
    return value or {}


def bias(request: GenerateRequest, logit_bias: Mapping[str, float]) -> GenerateRequest:
    """`request` with OpenAI's `logit_bias`: token ids (as text) to -100 … 100. Raises HTTPError."""
    if not logit_bias:
        return request
    try:
        biases = {int(token): min(100.0, max(-100.0, value)) for token, value in logit_bias.items()}
    except ValueError:
        raise HTTPError(400, "logit_bias: the keys must be token ids") from None
    sampling = msgspec.structs.replace(request.sampling, logit_bias=biases)
    return msgspec.structs.replace(request, sampling=sampling)


def choices(request: GenerateRequest, count: int) -> list[GenerateRequest]:
    """`request` once per choice; a seed counts up, so that the choices differ."""
    seed = request.sampling.seed
    if seed is None:
        return [request] * count
    return [
        msgspec.structs.replace(request, sampling=msgspec.structs.replace(request.sampling, seed=seed + number))
        for number in range(count)
    ]


def check_count(count: int | None) -> int:
    """`n`. Raises HTTPError."""
    if count is not None and not 1 <= count <= MOST_CHOICES:
        raise HTTPError(400, f"n must be between 1 and {MOST_CHOICES}")
    return count or 1


def write_calls(calls: Sequence[ToolCall], first_index: int) -> list[wire.OpenAIToolCall]:
    return [
        wire.OpenAIToolCall(
            call.id or new_call_id(), index, "function", wire.OpenAIToolCallFunction(call.name, arguments_text(call))
        )
        for index, call in enumerate(calls, first_index)
    ]


def usage(finishes: Sequence[Finish], *, shared_prompt: bool = False) -> wire.CompletionUsage:
    """Counts of all choices together; a prompt that they share counts once."""
    counted = finishes[:1] if shared_prompt else finishes
    prompt = sum(finish.prompt_tokens for finish in counted)
    completion = sum(finish.completion_tokens for finish in finishes)
    cached = sum(finish.cached_tokens for finish in counted)
    thinking = sum(finish.thinking_tokens for finish in finishes)
    details = wire.ReasoningTokens(thinking) if thinking else UNSET
    return wire.CompletionUsage(prompt, completion, prompt + completion, wire.CachedTokens(cached), details)


def write_logprobs(tokens: Sequence[TokenLogprob]) -> wire.Logprobs:
    return wire.Logprobs(
        [
            wire.ChatCompletionTokenLogprob(
                token.token,
                token.logprob,
                token.bytes,
                [wire.TopLogprob(other.token, other.logprob, other.bytes) for other in token.top],
            )
            for token in tokens
        ]
    )
