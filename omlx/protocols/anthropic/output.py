"""The Anthropic dialect, way out: events become content blocks, streamed in Anthropic's exact order or whole.

A *block* is a stretch of one kind (thinking, text, one tool call). Exactly one is open at a time; it is closed
before the next one starts, so nothing a model says between tool calls is lost.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from msgspec import UNSET

from omlx.messages.request import Delta, Finish, ToolCall
from omlx.protocols.anthropic import wire as wire
from omlx.protocols.tools import arguments_text, new_call_id

_CHARACTERS_PER_TOKEN = 4


class MessageAnswer:
    """Writes one message. `characters`: length of the prompt, from which `message_start` estimates its tokens."""

    def __init__(self, body: wire.MessagesRequest, *, characters: int) -> None:
        self._message = wire.AnthropicMessage(
            id=f"msg_{secrets.token_hex(12)}",
            model=body.model,
            content=[],
            stop_reason=None,
            usage=wire.AnthropicUsage(input_tokens=max(1, characters // _CHARACTERS_PER_TOKEN)),
        )
        self._stops = body.stop_sequences
        self._blocks: list[wire.Block] = []
        self._open = False
        self._begun = False
        self._called = False

    def delta(self, choice: int, delta: Delta) -> list[wire.StreamEvent]:
        events = self._begin()
        if delta.thinking:
            events += self._text("thinking", delta.thinking)
        if delta.content:
            events += self._text("text", delta.content)
        for call in delta.tool_calls:
            events += self._call(call)
        return events

    def finish(self, choice: int, finish: Finish, load_ns: int) -> list[wire.StreamEvent]:
        ended = wire.MessageDelta(delta=wire.MessageChange(*self._reason(finish)), usage=usage(finish))
        return [*self._begin(), *self._close(), ended, wire.MessageStop()]

    def end(self) -> list[wire.StreamEvent]:
        return []

    def whole(self, answers: Sequence[tuple[Delta, Finish]]) -> wire.AnthropicMessage:
        delta, finish = answers[0]
        self.delta(0, delta)
        self._message.content = self._blocks
        self._message.stop_reason, self._message.stop_sequence = self._reason(finish)
        self._message.usage = usage(finish)
        return self._message

    def _begin(self) -> list[wire.StreamEvent]:
        if self._begun:
            return []
        self._begun = True
        return [wire.MessageStart(message=self._message)]

    def _text(self, kind: str, text: str) -> list[wire.StreamEvent]:
        """More thinking or text: into the open block if it is of that kind, else into a new one."""
        events: list[wire.StreamEvent] = []
        if not (self._open and self._blocks[-1].type == kind):
            events += self._start(
                wire.Block(type="text", text="")
                if kind == "text"
                else wire.Block(type="thinking", thinking="", signature="")
            )
        block = self._blocks[-1]
        if kind == "text":
            block.text = (block.text or "") + text
            change = wire.BlockChange(type="text_delta", text=text)
        else:
            block.thinking = (block.thinking or "") + text
            change = wire.BlockChange(type="thinking_delta", thinking=text)
        return [*events, wire.BlockDelta(index=len(self._blocks) - 1, delta=change)]

    def _call(self, call: ToolCall) -> list[wire.StreamEvent]:
        self._called = True
        events = self._start(wire.Block(type="tool_use", id=call.id or new_call_id(), name=call.name, input={}))
        self._blocks[-1].input = call.arguments
        change = wire.BlockChange(type="input_json_delta", partial_json=arguments_text(call))
        return [*events, wire.BlockDelta(index=len(self._blocks) - 1, delta=change), *self._close()]

    def _start(self, block: wire.Block) -> list[wire.StreamEvent]:
        closed = self._close()
        self._open = True
        self._blocks.append(block)
        # The event shows the block as it starts; the kept one goes on growing.
        shown = wire.Block(
            type=block.type,
            thinking=block.thinking,
            signature=block.signature,
            text=block.text,
            id=block.id,
            name=block.name,
            input={} if block.input is not UNSET else UNSET,
        )
        return [*closed, wire.BlockStart(index=len(self._blocks) - 1, content_block=shown)]

    def _close(self) -> list[wire.StreamEvent]:
        if not self._open:
            return []
        self._open = False
        return [wire.BlockStop(index=len(self._blocks) - 1)]

    def _reason(self, finish: Finish) -> tuple[str, str | None]:
        """Why it ended, and the stop sequence it ended with; one that the model's Modelfile brings is no news."""
        if self._called:
            return "tool_use", None
        if finish.stop_string and finish.stop_string in self._stops:
            return "stop_sequence", finish.stop_string
        return "max_tokens" if finish.reason == "length" else "end_turn", None


def usage(finish: Finish) -> wire.AnthropicUsage:
    return wire.AnthropicUsage(
        input_tokens=finish.prompt_tokens - finish.cached_tokens,
        cache_read_input_tokens=finish.cached_tokens,
        output_tokens=finish.completion_tokens,
    )
