"""The Responses dialect, way out: events become output items, streamed event by event or whole.

One item is open at a time and is closed before the next one starts, so that items have indices of their own and text
beside tool calls is kept. Every event carries the next `sequence_number`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from omlx.messages.request import Delta, Finish, Message, ToolCall
from omlx.protocols.openai import responses_wire as wire
from omlx.protocols.openai.responses import namespaces
from omlx.protocols.openai.wire import CachedTokens, ReasoningTokens
from omlx.protocols.tools import arguments_text, new_call_id

StreamEvent = dict[str, Any]
Keep = Callable[[wire.Response, Message], None]
"""Told of a response that is complete, and of the assistant's turn as a message of the conversation."""


class ResponseAnswer:
    """Writes one response: streamed (`delta`, `finish`, `end`; `failed` in mid-stream) or `whole`."""

    def __init__(self, body: wire.ResponsesRequest, keep: Keep) -> None:
        self._keep = keep
        self._namespaces = namespaces(body.tools)
        self._response = _empty(body)
        self._items: list[wire.Item] = []
        self._calls: list[ToolCall] = []
        self._open = False
        self._pieces: list[str] = []
        """Text of the open item."""
        self._begun = False
        self._sequence = 0

    def delta(self, choice: int, delta: Delta) -> list[StreamEvent]:
        events = self._begin()
        if delta.thinking:
            events += self._think(delta.thinking)
        if delta.content:
            events += self._say(delta.content)
        for call in delta.tool_calls:
            events += self._call(call)
        return events

    def finish(self, choice: int, finish: Finish, load_ns: int) -> list[StreamEvent]:
        events = [*self._begin(), *self._close(_status(finish))]
        self._complete(finish)
        return [*events, self._event(f"response.{self._response.status}", response=self._response)]

    def end(self) -> list[StreamEvent]:
        return []

    def failed(self, message: str) -> StreamEvent:
        """The last event of a response that broke off."""
        if self._open:
            self._settle(self._items[-1], "incomplete")
        self._response.status = "failed"
        self._response.error = wire.ErrorInfo("server_error", message)
        self._response.output = self._items
        return self._event("response.failed", response=self._response)

    def whole(self, answers: Sequence[tuple[Delta, Finish]]) -> wire.Response:
        delta, finish = answers[0]
        self.delta(0, delta)
        self._close(_status(finish))
        self._complete(finish)
        return self._response

    def _complete(self, finish: Finish) -> None:
        response = self._response
        response.status = _status(finish)
        if response.status == "incomplete":
            response.incomplete_details = wire.Incomplete("max_output_tokens")
        else:
            response.completed_at = int(time.time())
        response.output = self._items
        response.usage = wire.ResponseUsage(
            input_tokens=finish.prompt_tokens,
            output_tokens=finish.completion_tokens,
            total_tokens=finish.prompt_tokens + finish.completion_tokens,
            input_tokens_details=CachedTokens(finish.cached_tokens),
            output_tokens_details=ReasoningTokens(finish.thinking_tokens),
        )
        self._keep(response, self._turn())

    def _turn(self) -> Message:
        texts = [item.content[0].text for item in self._items if isinstance(item, wire.MessageItem)]
        thoughts = [item.encrypted_content for item in self._items if isinstance(item, wire.ReasoningItem)]
        return Message(role="assistant", content="".join(texts), thinking="".join(thoughts), tool_calls=self._calls)

    # ------------------------------------------------------------ items
    def _begin(self) -> list[StreamEvent]:
        if self._begun:
            return []
        self._begun = True
        return [self._event(f"response.{name}", response=self._snapshot()) for name in ("created", "in_progress")]

    def _think(self, text: str) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        if not (self._open and isinstance(self._items[-1], wire.ReasoningItem)):
            events += self._start(wire.ReasoningItem(id=_new_id("rs")))
            part = wire.SummaryText(text="")
            events.append(
                self._event("response.reasoning_summary_part.added", **self._place(), summary_index=0, part=part)
            )
        self._pieces.append(text)
        fields = {**self._place(), "summary_index": 0, "delta": text}
        return [*events, self._event("response.reasoning_summary_text.delta", **fields)]

    def _say(self, text: str) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        if not (self._open and isinstance(self._items[-1], wire.MessageItem)):
            events += self._start(wire.MessageItem(id=_new_id("msg")))
            part = wire.OutputText(text="")
            events.append(self._event("response.content_part.added", **self._place(), content_index=0, part=part))
        self._pieces.append(text)
        fields = {**self._place(), "content_index": 0, "delta": text, "logprobs": []}
        return [*events, self._event("response.output_text.delta", **fields)]

    def _call(self, call: ToolCall) -> list[StreamEvent]:
        arguments, call_id = arguments_text(call), call.id or new_call_id()
        namespace, name = self._namespaces.get(call.name, (UNSET, call.name))
        item = wire.FunctionCallItem(id=_new_id("fc"), call_id=call_id, name=name, namespace=namespace)
        self._calls.append(ToolCall(call.name, call.arguments, call_id))
        events = self._start(item)
        self._pieces.append(arguments)
        delta = self._event("response.function_call_arguments.delta", **self._place(), delta=arguments)
        return [*events, delta, *self._close()]

    def _start(self, item: wire.Item) -> list[StreamEvent]:
        closed = self._close()
        self._open = True
        self._items.append(item)
        index = len(self._items) - 1
        # The event shows the item as it starts; the kept one goes on growing.
        shown = msgspec.structs.replace(item)
        return [*closed, self._event("response.output_item.added", output_index=index, item=shown)]

    def _close(self, status: str = "completed") -> list[StreamEvent]:
        if not self._open:
            return []
        self._open = False
        item, place = self._items[-1], self._place()
        self._settle(item, status)
        events: list[StreamEvent] = []
        match item:
            case wire.ReasoningItem():
                fields = {**place, "summary_index": 0, "text": item.encrypted_content}
                events.append(self._event("response.reasoning_summary_text.done", **fields))
                part = item.summary[0]
                events.append(self._event("response.reasoning_summary_part.done", **place, summary_index=0, part=part))
            case wire.MessageItem():
                content = item.content[0]
                fields = {**place, "content_index": 0, "text": content.text, "logprobs": []}
                events.append(self._event("response.output_text.done", **fields))
                events.append(self._event("response.content_part.done", **place, content_index=0, part=content))
            case wire.FunctionCallItem():
                fields = {**place, "name": item.name, "arguments": item.arguments}
                events.append(self._event("response.function_call_arguments.done", **fields))
        done = self._event("response.output_item.done", output_index=len(self._items) - 1, item=item)
        return [*events, done]

    def _settle(self, item: wire.Item, status: str) -> None:
        """Give the open item its text."""
        text = "".join(self._pieces)
        self._pieces = []
        match item:
            case wire.ReasoningItem():
                item.encrypted_content = text
                item.summary = [wire.SummaryText(text=text)]
                return
            case wire.MessageItem():
                item.content = [wire.OutputText(text=text)]
            case wire.FunctionCallItem():
                item.arguments = text
        item.status = status

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._items[-1].id, "output_index": len(self._items) - 1}

    def _snapshot(self) -> wire.Response:
        return msgspec.structs.replace(self._response, output=[])

    def _event(self, kind: str, /, **fields: Any) -> StreamEvent:
        event = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return event


def _status(finish: Finish) -> str:
    return "incomplete" if finish.reason == "length" else "completed"


def _new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(12)}"


def _empty(body: wire.ResponsesRequest) -> wire.Response:
    reasoning = None
    if body.reasoning is not None:
        reasoning = wire.ReasoningEcho(effort=body.reasoning.effort or UNSET, summary=body.reasoning.summary or UNSET)
    wanted = body.text.format if body.text and body.text.format else {"type": "text"}
    return wire.Response(
        id=_new_id("resp"),
        created_at=int(time.time()),
        model=body.model,
        previous_response_id=body.previous_response_id or None,
        instructions=body.instructions or None,
        output=[],
        tools=body.tools,
        tool_choice="auto" if body.tool_choice is None else body.tool_choice,
        truncation=body.truncation or "disabled",
        parallel_tool_calls=body.parallel_tool_calls,
        text={"format": wanted},
        top_p=1.0 if body.top_p is None else body.top_p,
        temperature=1.0 if body.temperature is None else body.temperature,
        reasoning=reasoning,
        max_output_tokens=body.max_output_tokens,
        store=body.store,
        background=body.background,
        metadata=body.metadata,
        safety_identifier=body.safety_identifier or None,
        prompt_cache_key=body.prompt_cache_key or None,
    )
