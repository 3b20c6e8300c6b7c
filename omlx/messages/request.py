"""The one internal request and its events.

Every protocol (Ollama, OpenAI, Anthropic) is translated into a `GenerateRequest` and back out of `Event`s; runner and
engine know nothing else. Pure msgspec: imported by the server, so nothing here may import MLX.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Priority = Literal["interactive", "batch", "background"]
PRIORITY_RANK: dict[Priority, int] = {"interactive": 0, "batch": 1, "background": 2}
"""Lower ranks go first."""
FinishReason = Literal["stop", "length"]
FailureKind = Literal["invalid", "too_long", "unsupported", "busy", "timeout", "crashed", "internal"]


class ToolCall(msgspec.Struct, omit_defaults=True):
    """A call the model made (or made earlier): `arguments` is an object, its key order kept."""

    name: str
    arguments: dict[str, Any]
    id: str = ""


class Video(msgspec.Struct, omit_defaults=True):
    """Frames of a video, 1/`fps` seconds apart, each the bytes of an image file; or one video file.

    Of a file `fps` frames a second are looked at. More than `max_frames` are thinned out evenly; 0: no limit.
    """

    frames: list[bytes]
    fps: float = 2.0
    max_frames: int = 0


class Message(msgspec.Struct, omit_defaults=True):
    """One turn of a conversation. `images` are decoded file bytes, not base64."""

    role: str
    content: str = ""
    thinking: str = ""
    images: list[bytes] = []
    tool_calls: list[ToolCall] = []
    tool_name: str = ""
    tool_call_id: str = ""
    videos: list[Video] = []


class Sampling(msgspec.Struct, omit_defaults=True, frozen=True, kw_only=True):
    """How the next token is chosen. Defaults are Ollama's; 0 or 1 (the neutral value) switches a filter off."""

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.9
    min_p: float = 0.0
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    """Window of tokens the penalties look at: 0 switches them off, -1 means the whole context."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    """None: a random seed per request."""
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1


class Limits(msgspec.Struct, omit_defaults=True, frozen=True, kw_only=True):
    """Where a generation ends and how much context it may use."""

    num_predict: int = -1
    """Most tokens to generate; -1: until the model stops (bounded by the context), -2: until the context is full."""
    num_ctx: int = 0
    """Context in tokens; 0: the runner's default. Never more than the model was trained for."""
    think_budget: int = -1
    """Most tokens of thinking: then it is closed and the answer begins; -1: no limit of its own."""
    num_keep: int = 4
    stop: list[str] = []
    truncate: bool = True
    """A prompt longer than the context loses its oldest messages; False: it is refused (`too_long`)."""
    shift: bool = True
    """A generation that fills the context drops old tokens and goes on; False: it ends with `length`."""
    draft_num_predict: int = 4
    """Most tokens that a draft model guesses at a time; 0: no guesses, of a draft model or from the prompt."""


class TextGrammar(msgspec.Struct, frozen=True):
    """A constraint on the answer that is no JSON schema: a regular expression, Lark or llama.cpp's GBNF."""

    kind: Literal["regex", "lark", "gbnf"]
    source: str


class GenerateRequest(msgspec.Struct, omit_defaults=True, kw_only=True):
    """One generation. Either `messages` (rendered with the model's template) or `raw_prompt` (taken verbatim)."""

    id: int
    """Unique within a runner connection; the host assigns it."""
    messages: list[Message] = []
    raw_prompt: str | None = None
    context: list[int] = []
    """Tokens of an earlier exchange, put in front of the new prompt (Ollama's /api/generate `context`)."""
    suffix: str | None = None
    """Fill-in-the-middle: the text behind the gap."""
    template: str | None = None
    """A Go template that replaces the model's own for this request."""
    tools: list[dict[str, Any]] = []
    must_call: bool | str = False
    """True: the reply is a call of one of `tools`; a name: of that tool. Its arguments obey the tool's schema."""
    strict_tools: bool = False
    """Calls obey the schemas of their tools also where the reply may be something else."""
    one_call: bool = False
    """The reply ends with its first tool call."""
    emulate_tools: bool = False
    """The model knows no tools: describe them in the prompt, and hold what it writes as a call to their schemas."""
    think: bool | str | None = None
    """None: the model's default (on where it can think); a level ("low", "medium", "high") counts as on."""
    template_kwargs: dict[str, Any] = {}
    """Variables for the model's Jinja template, which win over those that `think` comes to."""
    format: Literal["json"] | dict[str, Any] | None = None
    """Constrain the output: any JSON object, or a JSON schema."""
    grammar: TextGrammar | None = None
    """Constrain the output otherwise; `format` is None then."""
    sampling: Sampling = Sampling()
    limits: Limits = Limits()
    logprobs: bool = False
    top_logprobs: int = 0
    return_context: bool = False
    """Ask for `Finish.context`."""
    trace: str = ""
    """The id under which the log knows the HTTP request."""
    deadline: float | None = None
    """When it must be done, by the server's `time.monotonic()`; the server holds it. None: it has no deadline."""
    render_only: bool = False
    """Do not generate: `Finish.rendered` holds the prompt text."""
    priority: Priority = "interactive"


class TokenLogprob(msgspec.Struct, omit_defaults=True):
    """A token's text, log probability, bytes and, for the chosen token, its alternatives (most likely first)."""

    token: str
    logprob: float
    bytes: list[int] = []
    top: list[TokenLogprob] = []


class Delta(msgspec.Struct, tag="d", omit_defaults=True):
    """New output of one request in one step. At most one of the texts is usually set."""

    id: int
    content: str = ""
    thinking: str = ""
    tool_calls: list[ToolCall] = []
    logprobs: list[TokenLogprob] = []


class TokenUsage(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What a generation took. Durations in nanoseconds, counts in tokens."""

    prompt_tokens: int = 0
    """All prompt tokens, those served from the KV store included."""
    cached_tokens: int = 0
    disk_tokens: int = 0
    """The part of `cached_tokens` that was read from disk."""
    cache_reason: str = ""
    """Why not more was cached, as a word and as a sentence; "" where nothing was looked up."""
    cache_message: str = ""
    completion_tokens: int = 0
    prompt_ns: int = 0
    generation_ns: int = 0
    queue_ns: int = 0


class Finish(TokenUsage, tag="f", omit_defaults=True, kw_only=True):
    """The end of a request that went well."""

    id: int
    reason: FinishReason
    thinking_tokens: int = 0
    """The part of `completion_tokens` that was thinking, whether or not it was passed on."""
    stop_string: str = ""
    """The string of `Limits.stop` that ended the reply; "" where something else did."""
    context: list[int] = []
    rendered: str | None = None


class Failure(msgspec.Struct, tag="x", omit_defaults=True):
    """The end of a request that went wrong; `message` is a sentence a user may read."""

    id: int
    kind: FailureKind
    message: str


Event = Delta | Finish | Failure
