"""The *row* of a request that the engine works on: its tokens come in, events for the client go out."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from omlx.engine.sequence import Output
from omlx.messages.request import Delta, Event, Finish, GenerateRequest, TokenLogprob, TokenUsage, ToolCall
from omlx.prompting.output import OutputParser, Segment
from omlx.runner.prompt import Prompt


class EngineRow:
    """One request that the engine works on."""

    __slots__ = ("context", "logprobs", "parser", "request", "thinking_tokens")

    def __init__(self, request: GenerateRequest, prompt: Prompt, parser: OutputParser) -> None:
        self.request = request
        self.parser = parser
        # The tokens of a picture are left out: alone they do not stand for it.
        tokens = prompt.media.outside(prompt.tokens) if prompt.media is not None else prompt.tokens
        self.context = [*tokens] if request.return_context else []
        self.logprobs: list[TokenLogprob] = []
        """Of text that the parser still holds back."""
        self.thinking_tokens = 0

    def _feed(self, output: Output, markers: Collection[str]) -> list[Segment]:
        """The segments of what the model wrote. `markers`: the added tokens of the vocabulary.

        The last token of an opening marker and the closing marker count as thinking.
        """
        if self.parser.ended:
            return []
        before = self.parser.inside_thinking
        segments = self.parser.feed(output.text) if output.text else []
        if before or self.parser.inside_thinking:
            self.thinking_tokens += len(output.tokens)
        if output.finish is not None:
            # A stop string that is a token, of a Modelfile, ends a turn as well as the model's own.
            by_itself = not output.stop_string or output.stop_string in markers
            segments += self.parser.finish(ended=output.finish == "stop" and by_itself)
        self.logprobs += output.logprobs
        return segments

    def events(self, output: Output, markers: Collection[str]) -> list[Event]:
        """What the client gets of an output that is no failure. `markers`: the added tokens of the vocabulary."""
        if self.request.return_context:
            # The end-of-turn token too: what comes next is a new turn.
            self.context += output.tokens
        segments = self._feed(output, markers)
        events: list[Event] = [*deltas(output.id, segments, self.logprobs, last=output.finish is not None)]
        if events:
            self.logprobs = []
        if output.finish is not None:
            usage = output.usage or TokenUsage()
            finish = Finish(
                id=output.id,
                reason=output.finish,
                **msgspec.structs.asdict(usage),
                thinking_tokens=self.thinking_tokens,
                stop_string=output.stop_string,
                context=self.context,
            )
            events.append(finish)
        return events


def deltas(number: int, segments: list[Segment], logprobs: list[TokenLogprob], *, last: bool) -> list[Delta]:
    """As few deltas as keep the order of `segments`; the first carries the log probabilities.

    Log probabilities without any text wait for the next text, unless `last` says that none follows.
    """
    result: list[Delta] = []
    kind = ""
    for segment in segments:
        if segment.kind != kind:
            result.append(Delta(number))
            kind = segment.kind
        into = result[-1]
        match segment.kind:
            case "content":
                into.content += segment.text
            case "thinking":
                into.thinking += segment.text
            case "tool_call":
                into.tool_calls = [*into.tool_calls, _call(segment)]
    if logprobs and not result and last:
        result.append(Delta(number))
    if result:
        result[0].logprobs = logprobs
    return result


def _call(segment: Segment) -> ToolCall:
    if segment.call is None:
        raise ValueError("a tool call without its call")
    return segment.call
