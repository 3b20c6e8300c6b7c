"""Wire types of the Anthropic API: /v1/messages and /v1/messages/count_tokens.

Content is read by the dialect: it comes as text or as blocks of many kinds. In answers `UNSET` leaves a key out.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import UNSET, UnsetType

from omlx.protocols.common import CommonFields
from omlx.protocols.ollama.gojson import Go


# ---------------------------------------------------------------- requests
class MessageParam(msgspec.Struct, kw_only=True):
    role: str = ""
    content: Any = None


class AnthropicTool(msgspec.Struct, kw_only=True):
    GO_NAME: ClassVar[str] = "Tool"

    type: str = ""
    name: str = ""
    description: str = ""
    input_schema: dict[str, Any] = {}
    strict: Any = None


class ThinkingConfig(msgspec.Struct, kw_only=True):
    type: str = ""
    budget_tokens: int = 0


class OutputConfig(msgspec.Struct, kw_only=True):
    effort: str = ""
    format: dict[str, Any] = {}


class CountRequest(CommonFields, msgspec.Struct, kw_only=True):
    """What is counted; the same fields as of a request that is answered."""

    model: str = ""
    messages: Annotated[list[MessageParam], Go("[]anthropic.MessageParam")] = []
    system: Any = None
    tools: Annotated[list[AnthropicTool], Go("[]anthropic.Tool")] = []
    tool_choice: dict[str, Any] = {}
    thinking: Annotated[ThinkingConfig, Go("anthropic.ThinkingConfig")] | None = None
    output_config: Annotated[OutputConfig, Go("anthropic.OutputConfig")] | None = None
    chat_template_kwargs: Any = None
    """Ours: variables for the model's Jinja template."""


class MessagesRequest(CountRequest, kw_only=True):
    max_tokens: int = 0
    stream: bool = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] = []
    truncate: bool = True
    """Ours, as in /api/chat: False refuses a prompt that is longer than the context."""


# ---------------------------------------------------------------- answers
class AnthropicUsage(msgspec.Struct, kw_only=True):
    """Input tokens are those the cache did not have: the three kinds add up to the prompt."""

    input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int = 0


class Block(msgspec.Struct, kw_only=True):
    """A content block; its `type` says which of the fields it has."""

    type: str
    thinking: str | UnsetType = UNSET
    signature: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    id: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    input: dict[str, Any] | UnsetType = UNSET


class AnthropicMessage(msgspec.Struct, kw_only=True):
    id: str
    type: str = "message"
    role: str = "assistant"
    model: str
    content: list[Block]
    stop_reason: str | None
    stop_sequence: str | None = None
    usage: AnthropicUsage


class TokenCount(msgspec.Struct):
    input_tokens: int


# ---------------------------------------------------------------- stream events
class MessageStart(msgspec.Struct, kw_only=True):
    type: str = "message_start"
    message: AnthropicMessage


class BlockStart(msgspec.Struct, kw_only=True):
    type: str = "content_block_start"
    index: int
    content_block: Block


class BlockChange(msgspec.Struct, kw_only=True):
    """`type` is thinking_delta, text_delta or input_json_delta."""

    type: str
    thinking: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    partial_json: str | UnsetType = UNSET


class BlockDelta(msgspec.Struct, kw_only=True):
    type: str = "content_block_delta"
    index: int
    delta: BlockChange


class BlockStop(msgspec.Struct, kw_only=True):
    type: str = "content_block_stop"
    index: int


class MessageChange(msgspec.Struct):
    stop_reason: str
    stop_sequence: str | None = None


class MessageDelta(msgspec.Struct, kw_only=True):
    type: str = "message_delta"
    delta: MessageChange
    usage: AnthropicUsage


class MessageStop(msgspec.Struct, kw_only=True):
    type: str = "message_stop"


StreamEvent = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop
