"""Wire types of the OpenAI API: chat completions, completions, embeddings, models.

Request structs are named as in Go, because their names appear in Go's error texts (see
`omlx.protocols.ollama.gojson`). Fields that hold several shapes are `Any` and read by the dialect. In answers
`UNSET` leaves a key out; None is written as null.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import UNSET, UnsetType

from omlx.protocols.common import CommonFields
from omlx.protocols.ollama.gojson import Go
from omlx.protocols.ollama.wire import DebugInfo, Tool


# ---------------------------------------------------------------- requests
class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool = False


class ResponseFormat(msgspec.Struct, kw_only=True):
    type: str = ""
    json_schema: dict[str, Any] = {}
    syntax: str = ""
    """Ours, as is `definition`: of a grammar."""
    definition: str = ""


class Reasoning(msgspec.Struct, kw_only=True):
    effort: str = ""
    summary: str = ""
    max_tokens: int | None = None
    """Most tokens of thinking; OpenRouter's field."""


class OpenAIMessage(msgspec.Struct, kw_only=True):
    """A turn: `content` is a text, a list of parts or nothing; `tool_calls` as the client got them."""

    GO_NAME: ClassVar[str] = "Message"

    role: str = ""
    content: Any = None
    reasoning: str = ""
    reasoning_content: str = ""
    """What other servers call `reasoning`."""
    tool_calls: list[dict[str, Any]] = []
    tool_call_id: str = ""
    name: str = ""


class _Completion(CommonFields, msgspec.Struct, kw_only=True):
    model: str = ""
    stream: bool = False
    stream_options: Annotated[StreamOptions, Go("openai.StreamOptions")] | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    seed: int | None = None
    stop: Any = None
    n: int | None = None
    logit_bias: dict[str, float] = {}
    chat_template_kwargs: Any = None
    """vLLM's: variables for the model's Jinja template."""
    truncate: bool = True
    """Ours, as in /api/chat: False refuses a prompt that is longer than the context."""
    debug_render_only: bool = msgspec.field(default=False, name="_debug_render_only")


class ChatCompletionRequest(_Completion, kw_only=True):
    messages: Annotated[list[OpenAIMessage], Go("[]openai.Message")] = []
    max_completion_tokens: int | None = None
    response_format: Annotated[ResponseFormat, Go("openai.ResponseFormat")] | None = None
    tools: Annotated[list[dict[str, Any]], Go("[]api.Tool", item=Tool)] = []
    tool_choice: Any = None
    parallel_tool_calls: bool = True
    reasoning: Annotated[Reasoning, Go("openai.Reasoning")] | None = None
    reasoning_effort: str = ""
    logprobs: bool = False
    top_logprobs: int = 0


class CompletionRequest(_Completion, kw_only=True):
    prompt: Any = None
    suffix: str = ""
    echo: bool = False
    logprobs: int | None = None


class EmbeddingsRequest(CommonFields, msgspec.Struct, kw_only=True):
    GO_NAME: ClassVar[str] = "EmbedRequest"

    model: str = ""
    input: Any = None
    dimensions: int = 0
    encoding_format: str = ""


# ---------------------------------------------------------------- pieces of answers
class CachedTokens(msgspec.Struct):
    cached_tokens: int


class ReasoningTokens(msgspec.Struct):
    reasoning_tokens: int = 0


class CompletionUsage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens | UnsetType = UNSET
    """Where the model thought."""


class OpenAIToolCallFunction(msgspec.Struct):
    name: str
    arguments: str
    """JSON text."""


class OpenAIToolCall(msgspec.Struct):
    id: str
    index: int
    type: str
    function: OpenAIToolCallFunction


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class ChatCompletionTokenLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class Logprobs(msgspec.Struct):
    content: list[ChatCompletionTokenLogprob]


class CompletionLogprobs(msgspec.Struct):
    """The older form: parallel lists, one entry per token; offsets count characters of the choice's text."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


# ---------------------------------------------------------------- answers
class ChatCompletionMessage(msgspec.Struct, kw_only=True):
    role: str
    content: str
    reasoning: str | UnsetType = UNSET
    tool_calls: list[OpenAIToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    index: int
    message: ChatCompletionMessage
    finish_reason: str | None
    logprobs: Logprobs | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, kw_only=True):
    id: str
    object: str = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: CompletionUsage
    debug_info: DebugInfo | UnsetType = msgspec.field(default=UNSET, name="_debug_info")


class ChatDelta(msgspec.Struct, kw_only=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[OpenAIToolCall] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, kw_only=True):
    index: int
    delta: ChatDelta
    finish_reason: str | None = None
    logprobs: Logprobs | UnsetType = UNSET


class ChatChunk(msgspec.Struct, kw_only=True):
    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: CompletionUsage | UnsetType = UNSET


class CompletionChoice(msgspec.Struct, kw_only=True):
    text: str
    index: int
    finish_reason: str | None
    logprobs: CompletionLogprobs | UnsetType = UNSET


class Completion(msgspec.Struct, kw_only=True):
    id: str
    object: str = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: CompletionUsage


class CompletionChunk(msgspec.Struct, kw_only=True):
    id: str
    object: str = "text_completion"
    created: int
    choices: list[CompletionChoice]
    model: str
    system_fingerprint: str
    usage: CompletionUsage | UnsetType = UNSET


class Embedding(msgspec.Struct, kw_only=True):
    object: str = "embedding"
    embedding: list[float] | str
    """Numbers, or little-endian float32 in base64."""
    index: int


class EmbedUsage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct, kw_only=True):
    object: str = "list"
    data: list[Embedding]
    model: str
    usage: EmbedUsage


class Model(msgspec.Struct, kw_only=True):
    id: str
    object: str = "model"
    created: int
    owned_by: str


class ModelList(msgspec.Struct, kw_only=True):
    object: str = "list"
    data: list[Model]
