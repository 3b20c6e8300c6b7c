"""A *prompt template* turns a request into the text that the model reads, whatever its template is written in.

Made once per model, used for each request. Three kinds: the model's own Jinja chat template, a Go template from a
Modelfile or request, or none at all (plain text, for base models).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import msgspec

from omlx.dialect import conversation
from omlx.dialect.abilities import Abilities, probe
from omlx.dialect.conversation import JsonMessage, to_json
from omlx.dialect.errors import TemplateError, TemplateTooSlow
from omlx.dialect.gochat import GoChat
from omlx.dialect.infill import Infill, find_infill
from omlx.dialect.jinja import JinjaTemplate
from omlx.dialect.thinking import ends_inside_thinking
from omlx.dialect.toolprose import call_writer, describe_tools
from omlx.request import GenerateRequest, Message, Video

__all__ = ["Markers", "PromptTemplate", "Rendered", "TemplateError"]

_IMAGE_TAG = re.compile(r"\[img-(\d{1,6})\]")
_CONTINUE = "\u2063omlx\u2063"
"""Marks where an unfinished assistant message ends, to cut the template's end-of-turn text off."""


class Rendered(NamedTuple):
    """A prompt ready for the tokenizer."""

    text: str
    opens_thinking: bool = False
    """The prompt ends inside a thinking block: output starts with thinking."""
    add_special: bool = False
    """Let the tokenizer add its own special tokens (begin-of-text); a Jinja template writes them itself."""
    images: tuple[bytes, ...] = ()
    """Images in the order in which the prompt refers to them."""
    videos: tuple[Video, ...] = ()


class Markers(NamedTuple):
    """Texts that stand for an image and for a video where the template has no place for one; None where the model takes
    none."""

    image: str | None = None
    video: str | None = None


class Template(Protocol):
    """A Jinja template that was read."""

    source: str

    def render(self, variables: dict[str, Any]) -> str:
        """Raises TemplateError."""
        ...


class _Source(Protocol):
    """One kind of template."""

    def render(self, request: GenerateRequest, markers: Markers) -> Rendered: ...


class PromptTemplate:
    """The template of one model."""

    def __init__(self, source: _Source, infill: Infill | None = None) -> None:
        self._source = source
        self._infill = infill

    @classmethod
    def from_jinja(
        cls,
        source: str,
        *,
        bos_token: str = "",
        eos_token: str = "",
        variables: Mapping[str, Any] | None = None,
        tokens: Collection[str] = (),
        with_tools: str | None = None,
        compiled: Callable[[str], Template] = JinjaTemplate,
    ) -> PromptTemplate:
        """`variables`: further names a template may use, such as other special tokens; `tokens`: the special and added
        tokens, which tell how the model fills in the middle; `with_tools`: another source, for requests with tools;
        `compiled`: what makes a template of a source. Raises TemplateError."""
        names = {**(variables or {}), "bos_token": bos_token, "eos_token": eos_token}
        plain = _Jinja(compiled(source), names)
        found = plain if with_tools is None else _Choice(plain, _Jinja(compiled(with_tools), names))
        return cls(found, find_infill(tokens))

    @classmethod
    def from_go(cls, source: str) -> PromptTemplate:
        """A Modelfile's TEMPLATE. Raises TemplateError with Go's message."""
        return cls(_Go(source))

    @classmethod
    def plain(cls, *, tokens: Collection[str] = ()) -> PromptTemplate:
        """For a model without a template: the texts of the messages, a blank line between them, and nothing else."""
        return cls(_Plain(), find_infill(tokens))

    @property
    def abilities(self) -> Abilities | None:
        """What the Jinja template takes; None for other kinds."""
        return self._source.abilities if isinstance(self._source, _Jinja) else None

    def render(self, request: GenerateRequest, *, markers: Markers | None = None) -> Rendered:
        """The prompt of `request`.

        `markers` are for models whose template does not place images or videos itself. Raises TemplateError, whose
        message says what to change.
        """
        markers = markers or Markers()
        if request.raw_prompt is not None:
            return _raw(request.raw_prompt, _images(request.messages), markers.image)
        if request.template:
            return _Go(request.template).render(request, markers)
        if request.suffix and not isinstance(self._source, _Go):
            if self._infill is None:
                raise TemplateError("this model cannot fill in the middle: ask without a suffix")
            before = request.messages[-1].content if request.messages else ""
            return Rendered(self._infill.render(before, request.suffix), add_special=True)
        return self._source.render(request, markers)


def _raw(prompt: str, images: tuple[bytes, ...], image_marker: str | None) -> Rendered:
    """A prompt as it is. Ollama's `[img-0]` … stand for its images; those without a mark go in front."""
    if images:
        if image_marker is None:
            raise TemplateError("this model does not support image input")
        order = [int(number) for number in _IMAGE_TAG.findall(prompt) if int(number) < len(images)]
        missing = [number for number in range(len(images)) if number not in order]
        marked = _IMAGE_TAG.sub(lambda tag: image_marker if int(tag[1]) < len(images) else tag[0], prompt)
        prompt = image_marker * len(missing) + marked
        images = tuple(images[number] for number in (*missing, *order))
    return Rendered(prompt, ends_inside_thinking(prompt), add_special=True, images=images)


def _images(messages: Iterable[Message]) -> tuple[bytes, ...]:
    return tuple(image for message in messages for image in message.images)


def _videos(messages: Iterable[Message]) -> tuple[Video, ...]:
    return tuple(video for message in messages for video in message.videos)


class _Plain:
    def render(self, request: GenerateRequest, markers: Markers) -> Rendered:
        messages = conversation.spell_out_tools(_with_markers(_explained(request), markers))
        text = "\n\n".join(message.content for message in messages if message.content)
        images, videos = _images(request.messages), _videos(request.messages)
        return Rendered(text, add_special=True, images=images, videos=videos)


class _Go:
    def __init__(self, source: str) -> None:
        self._chat = GoChat(source)

    def render(self, request: GenerateRequest, markers: Markers) -> Rendered:
        text = self._chat.render(request, _with_markers(_explained(request), markers))
        images, videos = _images(request.messages), _videos(request.messages)
        return Rendered(text, ends_inside_thinking(text), add_special=True, images=images, videos=videos)


def _explained(request: GenerateRequest) -> list[Message]:
    """The messages, the tools told in words where the template has no place for them."""
    return describe_tools(request.messages, request.tools) if request.emulate_tools else request.messages


def _with_markers(
    messages: list[Message], markers: Markers, *, images: bool = True, videos: bool = True
) -> list[Message]:
    """Images and videos written into the text as their markers. Raises TemplateError if there is no marker for them."""
    if images and _images(messages) and markers.image is None:
        raise TemplateError("this model does not support image input")
    if videos and _videos(messages) and not markers.video:
        raise TemplateError("this model does not support video input")
    marked = []
    for message in messages:
        if images and message.images and markers.image is not None:
            message = _mark_images(message, markers.image)
        if videos and message.videos and markers.video:
            content = markers.video * len(message.videos) + message.content
            message = msgspec.structs.replace(message, content=content, videos=[])
        marked.append(message)
    return marked


def _mark_images(message: Message, marker: str) -> Message:
    text, missing = message.content, 0
    for _ in message.images:
        if conversation.IMAGE_MARK in text:
            text = text.replace(conversation.IMAGE_MARK, marker, 1)
        else:
            missing += 1
    return msgspec.structs.replace(message, content=marker * missing + text, images=[])


class _Jinja:
    """The model's own chat template."""

    def __init__(self, template: Template, variables: dict[str, Any]) -> None:
        self._template = template
        source = template.source
        self._variables = variables
        self._kimi_ids = "<|tool_call_begin|>" in source
        self._knows_developer = "developer" in source
        self._channels = "<|channel|>" in source

    @cached_property
    def abilities(self) -> Abilities:
        return probe(lambda messages, tools: self._render(messages, tools, {}))

    def render(self, request: GenerateRequest, markers: Markers) -> Rendered:
        messages = request.messages
        messages = _with_markers(messages, markers, images=not self.abilities.images, videos=not self.abilities.videos)
        continued = _continued(messages)
        if messages and messages[-1].role == "assistant" and not continued and not messages[-1].tool_calls:
            messages = messages[:-1]
        messages = self._fit(messages)
        if request.tools and not self.abilities.tools:
            messages = describe_tools(messages, request.tools)
            messages = messages if self.abilities.system else conversation.fold_systems(messages)
        text = self._render_adapted(messages, request.tools, _think_variables(request.think, self._channels), continued)
        images, videos = _images(request.messages), _videos(request.messages)
        return Rendered(text, ends_inside_thinking(text), images=images, videos=videos)

    def _fit(self, messages: list[Message]) -> list[Message]:
        """The messages with what the template is known not to take changed."""
        fitted = conversation.link_tool_results(messages)
        if not self._knows_developer:
            fitted = [
                msgspec.structs.replace(message, role="system") if message.role == "developer" else message
                for message in fitted
            ]
        if not self.abilities.many_calls:
            fitted = conversation.one_call_each(fitted)
        if self.abilities.null_content:
            fitted = conversation.text_before_calls(fitted)
        if not self.abilities.calls:
            write = call_writer(self._template.source)
            fitted = conversation.spell_out_tools(fitted, write=write, results=not self.abilities.results)
        elif self._kimi_ids:
            fitted = conversation.renumber_calls(fitted, lambda index, name: f"functions.{name}:{index}")
        elif self.abilities.short_ids:
            fitted = conversation.renumber_calls(fitted, lambda index, _: f"call{index:05d}")
        if not self.abilities.system:
            fitted = conversation.fold_systems(fitted)
        if self._channels:
            fitted = [_thought_only(message) for message in fitted]
        return fitted

    def _render_adapted(
        self, messages: list[Message], tools: list[dict[str, Any]], variables: dict[str, Any], continued: bool
    ) -> str:
        """Render; where the template refuses, change the messages step by step and try again."""
        failure: TemplateError | None = None
        tried: list[Message] | None = None
        for adapt in (list, conversation.hoist_systems, conversation.lead_with_user, conversation.merge_repeats,
                      conversation.fold_systems, conversation.merge_repeats):  # fmt: skip
            messages = adapt(messages)
            if messages == tried:
                continue
            tried = messages
            try:
                return self._render_messages(messages, tools, variables, continued)
            except TemplateTooSlow:
                raise
            except TemplateError as error:
                # The first refusal speaks of what the user sent.
                failure = failure or error
        assert failure is not None
        raise failure

    def _render_messages(
        self, messages: list[Message], tools: list[dict[str, Any]], variables: dict[str, Any], continued: bool
    ) -> str:
        if continued:
            last = messages[-1]
            messages = [*messages[:-1], msgspec.structs.replace(last, content=last.content + _CONTINUE)]
        able = self.abilities
        shaped = [
            to_json(message, parts=able.parts, string_arguments=able.string_arguments, null_content=able.null_content)
            for message in messages
        ]
        text = self._render(shaped, tools, variables, add_generation_prompt=not continued)
        if not continued:
            return text
        before, mark, _ = text.rpartition(_CONTINUE)
        if not mark:
            raise TemplateError("the model's chat template cannot continue an unfinished answer of the assistant")
        return before

    def _render(
        self,
        messages: list[JsonMessage],
        tools: list[dict[str, Any]],
        variables: dict[str, Any],
        add_generation_prompt: bool = True,
    ) -> str:
        names = {
            **self._variables,
            **variables,
            "messages": messages,
            "tools": tools or None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        if tools:
            # SmolLM3's name.
            names["xml_tools"] = tools
        try:
            return self._template.render(names)
        except TemplateTooSlow:
            raise
        except TemplateError:
            # Some are written for calls with tools only, some know no effort of reasoning but their own.
            changed = {key: value for key, value in names.items() if key != "reasoning_effort"}
            if not tools:
                changed["tools"] = []
            elif len(changed) == len(names):
                raise
            return self._template.render(changed)


class _Choice:
    """Two templates of one model: some have another for conversations with tools."""

    def __init__(self, plain: _Jinja, with_tools: _Jinja) -> None:
        self._plain = plain
        self._with_tools = with_tools

    def render(self, request: GenerateRequest, markers: Markers) -> Rendered:
        return (self._with_tools if request.tools else self._plain).render(request, markers)


def _continued(messages: list[Message]) -> bool:
    """The conversation ends with the beginning of an answer, which the model is to go on with."""
    return bool(messages) and messages[-1].role == "assistant" and bool(messages[-1].content) and not (
        messages[-1].tool_calls
    )  # fmt: skip


def _think_variables(think: bool | str | None, channels: bool) -> dict[str, Any]:
    """`enable_thinking` is Qwen's name (and most others'), `thinking` Granite's and DeepSeek's, the effort gpt-oss's.

    Not asked counts as on, as in Ollama; a template without the names ignores them.
    """
    on = think is not False
    variables: dict[str, Any] = {"enable_thinking": on, "thinking": on}
    if think is not None:
        # MiniMax M3's name; unset, it decides for itself.
        variables["thinking_mode"] = "enabled" if on else "disabled"
    if isinstance(think, str):
        variables["reasoning_effort"] = "high" if think == "max" else think
    elif think is False and channels:
        # gpt-oss cannot switch its reasoning off.
        variables["reasoning_effort"] = "low"
    elif think is False:
        # Seed-OSS's name.
        variables["thinking_budget"] = 0
    return variables


def _thought_only(message: Message) -> Message:
    """gpt-oss has one analysis channel ahead of a tool call: text that came with the call is part of the thinking."""
    if not (message.tool_calls and message.thinking and message.content):
        return message
    return msgspec.structs.replace(message, thinking=f"{message.thinking}\n{message.content}", content="")
