"""A *Jinja chat* renders requests with the model's own Jinja template, in the shape of messages that it insists on.

The messages are changed as far as the template is known not to take them (see `template_capabilities`), and where it
refuses them all the same, step by step until it does not.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection
from datetime import datetime
from functools import cached_property
from typing import Any, Protocol

import msgspec

from omlx.messages.request import GenerateRequest, Message
from omlx.prompting import conversation
from omlx.prompting.conversation import JsonMessage, to_json
from omlx.prompting.errors import TemplateError, TemplateTooSlow
from omlx.prompting.rendered import Markers, Rendered, images_of, videos_of, with_markers
from omlx.prompting.switches import Switches
from omlx.prompting.template_capabilities import TOOL, TemplateCapabilities, probe, with_tools_key
from omlx.prompting.thinking import ends_inside_thinking, reads
from omlx.prompting.tool_prompt import call_writer, describe_tools

_CONTINUE = "\u2063omlx\u2063"
"""Marks where an unfinished assistant message ends, to cut the template's end-of-turn text off."""


class Template(Protocol):
    """A Jinja template that was read."""

    source: str

    def render(self, variables: dict[str, Any]) -> str:
        """Raises TemplateError."""
        ...


class JinjaChat:
    """A Jinja chat template that renders requests."""

    def __init__(
        self, template: Template, variables: dict[str, Any], tokens: Collection[str], *, needs_tools: bool = False
    ) -> None:
        self._template = template
        source = template.source
        self._needs_tools = needs_tools
        self._variables = variables
        self.write_call = call_writer(source, tokens)
        self._kimi_ids = "<|tool_call_begin|>" in source
        self._older_names = [name for name in ("functions", "datetime") if reads(source, name)]
        if reads(source, "tools"):
            self._older_names = []
        self._speaks_of_developers = "developer" in source
        self._channels = "<|channel|>" in source
        self._switches = Switches(source)

    @cached_property
    def template_capabilities(self) -> TemplateCapabilities:
        return probe(lambda messages, tools: self._render(messages, tools, {}), needs_tools=self._needs_tools)

    def render(self, request: GenerateRequest, markers: Markers) -> Rendered:
        messages = request.messages
        messages = with_markers(
            messages,
            markers,
            images=not self.template_capabilities.images,
            videos=not self.template_capabilities.videos,
        )
        continued = _continued(messages)
        if messages and messages[-1].role == "assistant" and not continued and not messages[-1].tool_calls:
            messages = messages[:-1]
        messages = self._fit(messages)
        variables = {**self._switches.variables(request.think, self._try), **request.template_kwargs}
        text = self._render_with_tools(messages, request.tools, variables, continued)
        images, videos = images_of(request.messages), videos_of(request.messages)
        return Rendered(text, ends_inside_thinking(text), images=images, videos=videos)

    def _try(self, variables: dict[str, Any]) -> str:
        """The prompt of a short conversation, "" where the template refuses it. Raises TemplateTooSlow."""
        try:
            tools = [TOOL] if self._needs_tools else []
            return self._render_messages([Message(role="user", content="Hello")], tools, variables, continued=False)
        except TemplateTooSlow:
            raise
        except TemplateError:
            return ""

    def _fit(self, messages: list[Message]) -> list[Message]:
        """The messages with what the template is known not to take changed."""
        fitted = conversation.link_tool_results(messages)
        if not (self._speaks_of_developers and self.template_capabilities.developer):
            fitted = [
                msgspec.structs.replace(message, role="system") if message.role == "developer" else message
                for message in fitted
            ]
        if not self.template_capabilities.many_calls:
            fitted = conversation.one_call_each(fitted)
        if self.template_capabilities.null_content or not self.template_capabilities.text_with_calls:
            fitted = conversation.text_before_calls(fitted)
        if not self.template_capabilities.calls:
            fitted = conversation.spell_out_tools(
                fitted, write=self.write_call, results=not self.template_capabilities.results
            )
        elif self._kimi_ids:
            fitted = conversation.renumber_calls(fitted, lambda index, name: f"functions.{name}:{index}")
        elif self.template_capabilities.short_ids:
            fitted = conversation.renumber_calls(fitted, lambda index, _: f"call{index:05d}")
        fitted = self._fit_systems(fitted)
        if self._channels:
            fitted = [_thought_only(message) for message in conversation.text_before_answered_calls(fitted)]
        return fitted

    def _fit_systems(self, messages: list[Message]) -> list[Message]:
        if not self.template_capabilities.system:
            messages = conversation.fold_systems(messages)
        if not self.template_capabilities.two_systems:
            messages = conversation.merge_leading_systems(messages)
        if not self.template_capabilities.late_systems:
            messages = conversation.fold_late_systems(messages)
        return messages

    def _render_with_tools(
        self, messages: list[Message], tools: list[dict[str, Any]], variables: dict[str, Any], continued: bool
    ) -> str:
        """The tools where the template has its place for them; told in words where it has none, or fails on these."""
        if not tools or self.template_capabilities.tools or self.template_capabilities.tools_key:
            try:
                return self._render_adapted(messages, tools, variables, continued)
            except TemplateTooSlow:
                raise
            except TemplateError as error:
                # Some fail on tools without a description, or on several types of one parameter.
                if not tools or self._needs_tools:
                    raise
                refusal = error
        else:
            refusal = None
        described = self._fit_systems(describe_tools(messages, tools, self.write_call))
        try:
            return self._render_adapted(described, [], variables, continued)
        except TemplateError as error:
            raise refusal or error from error

    def _render_adapted(
        self, messages: list[Message], tools: list[dict[str, Any]], variables: dict[str, Any], continued: bool
    ) -> str:
        """Render; where the template refuses, change the messages step by step and try again."""
        failure: TemplateError | None = None
        tried: list[Message] | None = None
        for adapt in (list, conversation.tell_lone_results, conversation.answer_before_user,
                      conversation.hoist_systems, conversation.lead_with_user, conversation.merge_repeats,
                      conversation.fold_systems, conversation.merge_repeats,
                      conversation.answer_before_user):  # fmt: skip
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
        able = self.template_capabilities
        marks = [_mark_of_text(message) if able.call_opening else "" for message in messages]
        shaped = [
            to_json(
                _marked(message, mark) if mark else message,
                parts=able.parts,
                result_parts=able.result_parts,
                string_arguments=able.string_arguments,
                null_content=able.null_content,
            )
            for message, mark in zip(messages, marks, strict=True)
        ]
        if tools and able.tools_key:
            shaped = with_tools_key(shaped, tools, able.tools_key)
        text = self._render(shaped, tools, variables, add_generation_prompt=not continued)
        for message, mark in zip(messages, marks, strict=True):
            if mark:
                # The text that the template has no place for, in front of the call.
                text = text.replace(able.call_opening + mark, message.content + able.call_opening, 1).replace(mark, "")
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
            "documents": None,
            **self._variables,
            **variables,
            "messages": messages,
            "tools": tools or None,
            "add_generation_prompt": add_generation_prompt,
        }
        if tools:
            # SmolLM3's name.
            names["xml_tools"] = tools
        if "functions" in self._older_names:
            # FireFunction's, as text. It has no place where there are none.
            names["functions"] = json.dumps(
                [tool.get("function", tool) for tool in tools], ensure_ascii=False, indent=4
            )
        if "datetime" in self._older_names:
            names["datetime"] = f"{datetime.now():%Y-%m-%d}"
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


def _mark_of_text(message: Message) -> str:
    """A word that is nowhere else, for a message that has text as well as calls."""
    return f"omlx{secrets.token_hex(8)}" if message.tool_calls and message.content else ""


def _marked(message: Message, mark: str) -> Message:
    """The message without its text, the mark in front of the name of its first call."""
    first, *others = message.tool_calls
    named = msgspec.structs.replace(first, name=mark + first.name)
    return msgspec.structs.replace(message, content="", tool_calls=[named, *others])


def _continued(messages: list[Message]) -> bool:
    """The conversation ends with the beginning of an answer, which the model is to go on with."""
    return bool(messages) and messages[-1].role == "assistant" and bool(messages[-1].content) and not (
        messages[-1].tool_calls
    )  # fmt: skip


def _thought_only(message: Message) -> Message:
    """gpt-oss has one analysis channel ahead of a tool call: text that came with the call is part of the thinking."""
    if not (message.tool_calls and message.thinking and message.content):
        return message
    return msgspec.structs.replace(message, thinking=f"{message.thinking}\n{message.content}", content="")
