"""From what a request says to the internal `GenerateRequest`, for the protocols that generate text.

Each protocol reads its own body into messages, tools and options; the checks against the model, the Modelfile's
defaults and the error texts are the same for all and live here. The checks come in Ollama's order, so that a request
with several mistakes gets the same error as there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypedDict

import msgspec

from omlx.messages.request import GenerateRequest, Message, TextGrammar
from omlx.prompting.errors import TemplateError
from omlx.protocols.http_error import HTTPError
from omlx.protocols.media import is_audio
from omlx.protocols.options import parse_options
from omlx.protocols.template_kwargs import read_template_kwargs, think_of
from omlx.protocols.tools import ToolChoice, without_strict

PULL_AGAIN = ". Pull the model again to get the latest version with full thinking support"
NO_IMAGES = "this model does not support image input"
NO_AUDIO = "this model does not support audio input"
NO_VIDEOS = "this model does not support video input"
_THOUGHT = re.compile(r"\A\s*<think>.*?</think>\s*", re.DOTALL)
_SYNTAXES = ("regex", "lark", "gbnf")

UnsupportedTools = Literal["error", "ignore", "emulate"]
"""What becomes of tools that the model does not know."""
Think = bool | str | None


class ModelFacts(Protocol):
    """What of a `ModelSpec` the protocols look at."""

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


class ChatInput(NamedTuple):
    """The part of a body that is read before its model is looked up: its errors come ahead of an unknown model."""

    messages: list[Message]
    choice: ToolChoice = ToolChoice()
    think: Think = None


def chat_request(
    name: str,
    model: ModelFacts,
    chat: ChatInput,
    *,
    options: Mapping[str, Any],
    format: Any = None,
    template_kwargs: Any = None,
    unsupported_tools: UnsupportedTools = "error",
    truncate: bool = True,
    shift: bool = True,
    one_call: bool = False,
    logprobs: bool = False,
    top_logprobs: int = 0,
    render_only: bool = False,
) -> GenerateRequest | None:
    """The internal request of a conversation; None where it has no messages: the model is only to be loaded.

    `name` is the model as the client calls it, `options`, `format` and `template_kwargs` are as JSON gives them. The
    request fields of the same name as `truncate` … `render_only` are copied. Raises HTTPError, OptionError.
    """
    messages, choice, think = chat
    check_thinking(name, model, think)
    tools, strict = without_strict(choice.tools)
    emulate = False
    if "tools" not in model.capabilities and unsupported_tools != "error":
        tools, emulate = ([], False) if unsupported_tools == "ignore" else (tools, bool(tools))
    check_capabilities(name, model, "chat", ["tools"] if tools and not emulate else [])
    sampling, limits = parse_options(options, model.parameters, truncate=truncate, shift=shift)
    kwargs = read_template_kwargs(template_kwargs)
    if not messages:
        return None
    check_sight(
        model,
        images=[image for message in messages for image in message.images],
        videos=any(message.videos for message in messages),
    )
    preset = preset_messages(model)
    if model.system and messages[0].role != "system":
        preset.insert(0, Message(role="system", content=model.system))
    return GenerateRequest(
        id=0,
        messages=_without_old_thoughts([*preset, *messages], model),
        tools=tools,
        must_call=choice.must_call if choice.tools else False,
        strict_tools=strict and bool(tools),
        one_call=one_call and bool(choice.tools),
        emulate_tools=emulate,
        think=think_level(thinking_wanted(think, kwargs, model), model),
        template_kwargs=kwargs,
        **read_format(format),
        sampling=sampling,
        limits=limits,
        logprobs=logprobs,
        top_logprobs=top_logprobs,
        render_only=render_only,
    )


# ---------------------------------------------------------------- checks
def check_top_logprobs(count: int) -> None:
    """Comes before the model is looked up. Raises HTTPError."""
    if not 0 <= count <= 20:
        raise HTTPError(400, "top_logprobs must be between 0 and 20")


def check_thinking(name: str, model: ModelFacts, think: Think) -> None:
    """Raises HTTPError where thinking is asked of a model that cannot think."""
    if think and "thinking" not in model.capabilities:
        hint = PULL_AGAIN if _thinks_in_text(model) else ""
        raise HTTPError(400, f'"{name}" does not support thinking{hint}')


def thinking_wanted(think: Think, kwargs: Mapping[str, Any], model: ModelFacts) -> Think:
    """What a request says of thinking, itself or by its template kwargs."""
    return think_of(kwargs) if think is None and "thinking" in model.capabilities else think


def check_capabilities(name: str, model: ModelFacts, verb: str, needed: Sequence[str]) -> None:
    """Raises HTTPError where the model generates no text or lacks one of the capabilities `needed`."""
    if "completion" not in model.capabilities:
        raise HTTPError(400, f'"{name}" does not support {verb}')
    missing = [capability for capability in needed if capability not in model.capabilities]
    if missing:
        raise HTTPError(400, f"{model.full_name} does not support " + "\n".join(missing))


def check_embedding(name: str, model: ModelFacts) -> None:
    """Raises HTTPError where the model takes no texts at all. Chat models embed too."""
    if "transcription" in model.capabilities:
        raise HTTPError(400, f'"{name}" does not support embeddings')


def check_sight(model: ModelFacts, *, images: Sequence[bytes], videos: bool = False) -> None:
    """Raises HTTPError where a text model is shown something, and where any model is to hear something."""
    if any(map(is_audio, images)):
        raise HTTPError(400, NO_AUDIO)
    if (images or videos) and "vision" not in model.capabilities:
        raise HTTPError(400, NO_IMAGES if images else NO_VIDEOS)


def check_template(source: str) -> None:
    """Raises ValueError, with Go's message, where `source` is no Go template."""
    from omlx.prompting.gotemplate import GoTemplate  # few requests bring one

    try:
        GoTemplate(source)
    except TemplateError as error:
        raise ValueError(str(error)) from None


# ---------------------------------------------------------------- parts of a request
class OutputFormat(TypedDict):
    """The fields of a request that constrain its answer."""

    format: Literal["json"] | dict[str, Any] | None
    grammar: TextGrammar | None


def read_format(value: Any) -> OutputFormat:
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


def given_options(**options: Any) -> dict[str, Any]:
    """Options by Ollama's names, without those that are None: not given."""
    return {name: value for name, value in options.items() if value is not None}


def think_level(think: Think, model: ModelFacts) -> Think:
    """gpt-oss knows no "max"."""
    family = str(model.details.family).replace("-", "").replace("_", "")
    return "high" if think == "max" and family == "gptoss" else think


def preset_messages(model: ModelFacts) -> list[Message]:
    """The Modelfile's MESSAGEs."""
    return [Message(role=str(item["role"]), content=str(item["content"])) for item in model.messages]


def _thinks_in_text(model: ModelFacts) -> bool:
    """Models that write their thoughts as text: clients send them back inside the answer."""
    return model.details.family == "qwen3" or model.name.rpartition("/")[2].startswith("deepseek-r1:")


def _without_old_thoughts(messages: list[Message], model: ModelFacts) -> list[Message]:
    """Thoughts of turns before the last question cost context and confuse these models."""
    if not _thinks_in_text(model):
        return messages
    last_question = max((index for index, message in enumerate(messages) if message.role == "user"), default=-1)
    return [
        msgspec.structs.replace(message, content=_THOUGHT.sub("", message.content))
        if message.role == "assistant" and index < last_question
        else message
        for index, message in enumerate(messages)
    ]
