"""Wire types of the OpenAI Responses API (/v1/responses).

`input` and tools come in many shapes and are read by the dialect. An answer is a `Response` whose `output` is a list
of items; the events of a stream are plain objects around these.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from omlx.protocols.common import CommonFields
from omlx.protocols.ollama.gojson import Go
from omlx.protocols.openai.wire import CachedTokens, Reasoning, ReasoningTokens


# ---------------------------------------------------------------- requests
class ResponseTextConfig(msgspec.Struct, kw_only=True):
    format: dict[str, Any] = {}


class ResponsesRequest(CommonFields, msgspec.Struct, kw_only=True):
    model: str = ""
    input: Any = None
    instructions: str = ""
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    reasoning: Annotated[Reasoning, Go("openai.ResponsesReasoning")] | None = None
    text: Annotated[ResponseTextConfig, Go("openai.ResponsesText")] | None = None
    tools: list[dict[str, Any]] = []
    tool_choice: Any = None
    parallel_tool_calls: bool = True
    previous_response_id: str = ""
    store: bool = True
    stream: bool = False
    background: bool = False
    truncation: str = ""
    metadata: dict[str, Any] = {}
    prompt_cache_key: str = ""
    safety_identifier: str = ""
    chat_template_kwargs: Any = None
    """vLLM's: variables for the model's Jinja template."""
    truncate: bool = True
    """Ours, as in /api/chat: False refuses a prompt that is longer than the context."""


# ---------------------------------------------------------------- output items
class SummaryText(msgspec.Struct, kw_only=True):
    type: str = "summary_text"
    text: str


class OutputText(msgspec.Struct, kw_only=True):
    type: str = "output_text"
    text: str
    annotations: list[Any] = []
    logprobs: list[Any] = []


class ReasoningItem(msgspec.Struct, kw_only=True):
    id: str
    type: str = "reasoning"
    summary: list[SummaryText] = []
    encrypted_content: str = ""
    """The thinking itself, so that clients which keep no state hand it back."""
    status: str | UnsetType = UNSET


class MessageItem(msgspec.Struct, kw_only=True):
    id: str
    type: str = "message"
    status: str = "in_progress"
    role: str = "assistant"
    content: list[OutputText] = []


class FunctionCallItem(msgspec.Struct, kw_only=True):
    id: str
    type: str = "function_call"
    status: str = "in_progress"
    call_id: str
    name: str
    namespace: str | UnsetType = UNSET
    arguments: str = ""


Item = ReasoningItem | MessageItem | FunctionCallItem


# ---------------------------------------------------------------- answers
class ResponseUsage(msgspec.Struct, kw_only=True):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: CachedTokens
    output_tokens_details: ReasoningTokens


class ReasoningEcho(msgspec.Struct, kw_only=True):
    effort: str | UnsetType = UNSET
    summary: str | UnsetType = UNSET


class ErrorInfo(msgspec.Struct):
    code: str
    message: str


class Incomplete(msgspec.Struct):
    reason: str


class Response(msgspec.Struct, kw_only=True):
    id: str
    object: str = "response"
    created_at: int
    completed_at: int | None = None
    status: str = "in_progress"
    incomplete_details: Incomplete | None = None
    model: str
    previous_response_id: str | None = None
    instructions: str | None = None
    output: list[Any]
    error: ErrorInfo | None = None
    tools: list[dict[str, Any]]
    tool_choice: Any = "auto"
    truncation: str = "disabled"
    parallel_tool_calls: bool = True
    text: dict[str, Any]
    top_p: float
    presence_penalty: float = 0
    frequency_penalty: float = 0
    top_logprobs: int = 0
    temperature: float
    reasoning: ReasoningEcho | None = None
    usage: ResponseUsage | None = None
    max_output_tokens: int | None = None
    max_tool_calls: None = None
    store: bool = False
    background: bool = False
    service_tier: str = "default"
    metadata: dict[str, Any] = {}
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


class Deleted(msgspec.Struct, kw_only=True):
    id: str
    object: str = "response"
    deleted: bool = True
