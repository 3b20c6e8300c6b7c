"""Wire types of the Ollama API: what its routes read and write, field for field and in upstream's key order.

Request structs are named as in Go, because their names appear in Go's error texts (see
`omlx.protocols.ollama.gojson`). In response structs a field with a default is left out while it has that default
(Go's omitempty); one without is always written. Durations are nanoseconds. The translation to and from the internal
request lives in `omlx.protocols.ollama.translate`. Here are generation and embeddings; `models` has the rest.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import UNSET, UnsetType

from omlx.protocols.common import CommonFields
from omlx.protocols.media import read_base64
from omlx.protocols.ollama.gojson import Go, PartSchema, Schema, WholeSchema
from omlx.units import parse_keep_alive

THINK_LEVELS = ("high", "medium", "low", "max")
_THINK_FORMS = '"high", "medium", "low", "max", true, or false'


def read_think(value: Any) -> bool | str:
    """`think`: a boolean or a level."""
    if isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise ValueError(f"think must be a boolean or string ({_THINK_FORMS})")
    if value not in THINK_LEVELS:
        raise ValueError(f'invalid think value: "{value}" (must be {_THINK_FORMS})')
    return value


def read_property_type(value: Any) -> str | list[str]:
    """A JSON schema `type`: one name or several."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise TypeError
    return value


def read_keep_alive(value: Any) -> float | None:
    """`keep_alive` in seconds; None where it is not given ("")."""
    return parse_keep_alive(value)


KeepAlive = Annotated[float | None, Go(parse=read_keep_alive)]
Think = Annotated[bool | str | None, Go(parse=read_think)]
Images = Annotated[list[Annotated[bytes, Go("api.ImageData", parse=read_base64)]], Go("[]api.ImageData")]


# ---------------------------------------------------------------- pieces of both directions
class ToolCallFunction(msgspec.Struct, kw_only=True):
    index: int = 0
    name: str = ""
    arguments: Annotated[dict[str, Any], Go("api.ToolCallFunctionArguments")] = {}


class OllamaToolCall(msgspec.Struct, kw_only=True):
    GO_NAME: ClassVar[str] = "ToolCall"

    id: str | UnsetType = UNSET
    function: ToolCallFunction = msgspec.field(default_factory=ToolCallFunction)


class OllamaVideo(msgspec.Struct, kw_only=True):
    """oMLX's own: frames of a video, or one video file; `fps` of the frames, or wanted of the file."""

    GO_NAME: ClassVar[str] = "Video"

    frames: Images = []
    fps: float = 2.0
    max_frames: int = 0


class OllamaMessage(msgspec.Struct, kw_only=True):
    """A turn as a request gives it."""

    GO_NAME: ClassVar[str] = "Message"

    role: str = ""
    content: str = ""
    thinking: str = ""
    images: Images = []
    videos: Annotated[list[OllamaVideo], Go("[]api.Video")] = []
    tool_calls: Annotated[list[OllamaToolCall], Go("[]api.ToolCall")] = []
    tool_name: str = ""
    tool_call_id: str = ""


class ToolProperty(PartSchema, kw_only=True):
    """The fields of a parameter's JSON schema that Ollama knows, and checks; a Go template sees no others."""

    anyOf: Annotated[list[ToolProperty], Go("[]api.ToolProperty")] | UnsetType = UNSET
    type: Annotated[str | list[str] | UnsetType, Go("api.PropertyType", parse=read_property_type)] = UNSET
    items: Any = UNSET
    description: str | UnsetType = UNSET
    enum: list[Any] | UnsetType = UNSET
    properties: Annotated[dict[str, ToolProperty], Go("api.ToolPropertiesMap", sealed=True)] | UnsetType = UNSET
    required: list[str] | UnsetType = UNSET


class ToolParameters(WholeSchema, kw_only=True):
    type: str = ""
    defs: Any = msgspec.field(default=UNSET, name="$defs")
    items: Any = UNSET
    required: list[str] | UnsetType = UNSET
    properties: Annotated[dict[str, ToolProperty], Go("api.ToolPropertiesMap", sealed=True)] = msgspec.field(
        default_factory=dict
    )


class ToolFunction(Schema, kw_only=True):
    name: str = ""
    description: str | UnsetType = UNSET
    parameters: Annotated[ToolParameters, Go("api.ToolFunctionParameters")] = msgspec.field(
        default_factory=ToolParameters
    )
    strict: Any = UNSET
    """OpenAI's: calls obey the schema wherever they are made."""


class Tool(Schema, kw_only=True):
    """A function the model may call."""

    type: str = ""
    items: Any = UNSET
    function: Annotated[ToolFunction, Go("api.ToolFunction")] = msgspec.field(default_factory=ToolFunction)


Messages = Annotated[list[OllamaMessage], Go("[]api.Message", sealed=True)]


# ---------------------------------------------------------------- requests
class _OllamaGeneration(CommonFields, msgspec.Struct, kw_only=True):
    model: str = ""
    stream: bool = True
    format: Any = None
    options: dict[str, Any] = {}
    keep_alive: KeepAlive = None
    think: Think = None
    think_budget: int | None = None
    """Ours: the same as the option of this name."""
    chat_template_kwargs: Any = None
    """Ours: variables for the model's Jinja template."""
    truncate: bool = True
    shift: bool = True
    logprobs: bool = False
    top_logprobs: int = 0
    debug_render_only: bool = msgspec.field(default=False, name="_debug_render_only")


class OllamaGenerateRequest(_OllamaGeneration, kw_only=True):
    GO_NAME: ClassVar[str] = "GenerateRequest"

    prompt: str = ""
    suffix: str = ""
    system: str = ""
    template: str = ""
    context: list[int] = []
    raw: bool = False
    images: Images = []


class ChatRequest(_OllamaGeneration, kw_only=True):
    messages: Messages = []
    tools: Annotated[list[dict[str, Any]], Go("api.Tools", item=Tool)] = []


class EmbedRequest(CommonFields, msgspec.Struct, kw_only=True):
    model: str = ""
    input: Any = None
    keep_alive: KeepAlive = None
    truncate: bool = True
    dimensions: int = 0
    options: dict[str, Any] = {}


class EmbeddingRequest(CommonFields, msgspec.Struct, kw_only=True):
    """The older, single-prompt form."""

    model: str = ""
    prompt: str = ""
    keep_alive: KeepAlive = None
    truncate: bool = True
    options: dict[str, Any] = {}


# ---------------------------------------------------------------- responses
class OllamaTokenLogprob(msgspec.Struct, omit_defaults=True):
    token: str
    logprob: float
    bytes: list[int] = []


class Logprob(msgspec.Struct, omit_defaults=True):
    token: str
    logprob: float
    bytes: list[int] = []
    top_logprobs: list[OllamaTokenLogprob] = []


class DebugInfo(msgspec.Struct, omit_defaults=True):
    rendered_template: str
    image_count: int = 0


class GenerateResponse(msgspec.Struct, omit_defaults=True, kw_only=True):
    model: str
    created_at: str
    response: str
    thinking: str = ""
    done: bool
    done_reason: str = ""
    context: list[int] = []
    total_duration: int = 0
    load_duration: int = 0
    prompt_eval_count: int = 0
    cached_tokens: int = 0
    """Ours: how many of the prompt's tokens came from the KV store."""
    prompt_eval_duration: int = 0
    eval_count: int | UnsetType = UNSET
    """On the last object, 0 too: clients read it without asking whether it is there."""
    eval_duration: int = 0
    tool_calls: list[OllamaToolCall] = []
    debug_info: DebugInfo | None = msgspec.field(default=None, name="_debug_info")
    logprobs: list[Logprob] = []


class ChatMessage(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The assistant's turn: `role` and `content` are on every chunk."""

    role: str
    content: str
    thinking: str = ""
    tool_calls: list[OllamaToolCall] = []


class ChatResponse(msgspec.Struct, omit_defaults=True, kw_only=True):
    model: str
    created_at: str
    message: ChatMessage
    done: bool
    done_reason: str = ""
    debug_info: DebugInfo | None = msgspec.field(default=None, name="_debug_info")
    logprobs: list[Logprob] = []
    total_duration: int = 0
    load_duration: int = 0
    prompt_eval_count: int = 0
    cached_tokens: int = 0
    """Ours: how many of the prompt's tokens came from the KV store."""
    prompt_eval_duration: int = 0
    eval_count: int | UnsetType = UNSET
    eval_duration: int = 0


class EmbedResponse(msgspec.Struct, omit_defaults=True, kw_only=True):
    model: str
    embeddings: list[list[float]]
    total_duration: int = 0
    load_duration: int = 0
    prompt_eval_count: int = 0


class EmbeddingResponse(msgspec.Struct):
    embedding: list[float]
