"""A *prompt template* turns a request into the text that the model reads, whatever its template is written in.

Made once per model, used for each request. Three kinds: the model's own Jinja chat template, a Go template from a
Modelfile or request, or none at all (plain text, for base models).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from omlx.messages.request import GenerateRequest, Message
from omlx.prompting import conversation
from omlx.prompting.errors import TemplateError, TemplateTooSlow
from omlx.prompting.gochat import GoChat
from omlx.prompting.infill import Infill, find_infill
from omlx.prompting.jinja import JinjaTemplate
from omlx.prompting.jinjachat import JinjaChat, Template
from omlx.prompting.rendered import Markers, Rendered, images_of, videos_of, with_markers
from omlx.prompting.template_capabilities import TemplateCapabilities
from omlx.prompting.thinking import ends_inside_thinking
from omlx.prompting.tool_prompt import WriteCall, call_writer, describe_tools

__all__ = ["Markers", "PromptTemplate", "Rendered", "TemplateError"]

_IMAGE_TAG = re.compile(r"\[img-(\d{1,6})\]")


class _Source(Protocol):
    """One kind of template."""

    write_call: WriteCall
    """How the model writes a call, as text."""

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
        infill = find_infill(tokens)
        plain = JinjaChat(compiled(source), names, tokens)
        if with_tools is None:
            return cls(plain, infill)
        return cls(_Choice(plain, JinjaChat(compiled(with_tools), names, tokens, needs_tools=True)), infill)

    @classmethod
    def from_go(cls, source: str, *, tokens: Collection[str] = ()) -> PromptTemplate:
        """A Modelfile's TEMPLATE. Raises TemplateError with Go's message."""
        return cls(_Go(source, call_writer(source, tokens)))

    @classmethod
    def plain(cls, *, tokens: Collection[str] = ()) -> PromptTemplate:
        """For a model without a template: the texts of the messages, a blank line between them, and nothing else."""
        return cls(_Plain(call_writer("", tokens)), find_infill(tokens))

    @property
    def template_capabilities(self) -> TemplateCapabilities | None:
        """What the Jinja template takes; None for other kinds."""
        return self._source.template_capabilities if isinstance(self._source, JinjaChat) else None

    def render(self, request: GenerateRequest, *, markers: Markers | None = None) -> Rendered:
        """The prompt of `request`.

        `markers` are for models whose template does not place images or videos itself. Raises TemplateError, whose
        message says what to change.
        """
        markers = markers or Markers()
        if request.raw_prompt is not None:
            return _raw(request.raw_prompt, images_of(request.messages), markers.image)
        if request.template:
            return _Go(request.template, self._source.write_call).render(request, markers)
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


class _Plain:
    def __init__(self, write_call: WriteCall) -> None:
        self.write_call = write_call

    def render(self, request: GenerateRequest, markers: Markers) -> Rendered:
        messages = with_markers(_explained(request, self.write_call), markers)
        write = self.write_call if request.emulate_tools else conversation.write_call_as_json
        messages = conversation.spell_out_tools(messages, write=write)
        text = "\n\n".join(message.content for message in messages if message.content)
        images, videos = images_of(request.messages), videos_of(request.messages)
        return Rendered(text, add_special=True, images=images, videos=videos)


class _Go:
    def __init__(self, source: str, write_call: WriteCall) -> None:
        self._chat = GoChat(source, write_call)
        self.write_call = write_call

    def render(self, request: GenerateRequest, markers: Markers) -> Rendered:
        text = self._chat.render(request, with_markers(_explained(request, self.write_call), markers))
        images, videos = images_of(request.messages), videos_of(request.messages)
        return Rendered(text, ends_inside_thinking(text), add_special=True, images=images, videos=videos)


def _explained(request: GenerateRequest, write_call: WriteCall) -> list[Message]:
    """The messages, the tools told in words where the template has no place for them."""
    return describe_tools(request.messages, request.tools, write_call) if request.emulate_tools else request.messages


class _Choice:
    """Two templates of one model: some have another for conversations with tools."""

    def __init__(self, plain: JinjaChat, with_tools: JinjaChat) -> None:
        self._plain = plain
        self._with_tools = with_tools
        self.write_call = with_tools.write_call

    def render(self, request: GenerateRequest, markers: Markers) -> Rendered:
        if not request.tools:
            return self._plain.render(request, markers)
        try:
            return self._with_tools.render(request, markers)
        except TemplateTooSlow:
            raise
        except TemplateError as error:
            try:
                return self._plain.render(request, markers)
            except TemplateError:
                raise error from None
