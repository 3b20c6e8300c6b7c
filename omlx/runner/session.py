"""The *session* of a runner: all its open requests, from frame to prompt to engine and back to events.

The main thread calls everything here; only the preparation of prompts runs in helper threads. A fault in the host
work of one request (its template, its parser, its grammar) ends that request alone.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import msgspec

from omlx.engine.engine import Engine
from omlx.engine.panics import ends_only_its_request, told
from omlx.engine.sequence import EngineError, Output, SequenceSpec
from omlx.engine.vision.image_size import declared_pixels
from omlx.messages.constraint import Grammar, ThinkLimit
from omlx.messages.context import effective_context
from omlx.messages.failures import PROMPT_FAILED, running_failed
from omlx.messages.request import Delta, Event, Failure, Finish, GenerateRequest, TokenLogprob, TokenUsage, ToolCall
from omlx.prompting.constraint import constrain, limit_thinking
from omlx.prompting.output import PLAIN, OutputDialect, OutputParser, Segment
from omlx.runner.ledger import Ledger, expected_tokens
from omlx.runner.prompt import Prompt, Prompter, PromptError

log = logging.getLogger("omlx.runner")

_HELPERS = 2
_GATHER_S = 0.03
"""The longest that a step waits for prompts that are being made."""
_WORTH_WAITING_S = 0.03
"""A prompt that takes longer to make is not waited for."""
_OPENERS, _SMALL_OPENERS = 3, 2
"""They only wait: pictures are decoded in other processes."""
_SMALL_PICTURES, _SMALL_BYTES, _SMALL_PIXELS = 2, 1 << 20, 10_000_000
"""Of a request whose pictures cannot take long: it does not wait for others, whose files may be made to."""


class _Ready(NamedTuple):
    """A request with all that the engine needs for it."""

    request: GenerateRequest
    prompt: Prompt
    grammar: Grammar | None
    thinking: ThinkLimit | None


class _Unwanted(Exception):
    """The request was cancelled while its prompt was made."""


class _Prepared(NamedTuple):
    request: GenerateRequest
    outcome: _Ready | Failure


class _Row:
    """One request that the engine works on."""

    __slots__ = ("context", "logprobs", "parser", "request", "thinking_tokens")

    def __init__(self, request: GenerateRequest, prompt: Prompt, parser: OutputParser) -> None:
        self.request = request
        self.parser = parser
        # Tokens alone cannot bring a picture back.
        tokens = prompt.media.outside(prompt.tokens) if prompt.media is not None else prompt.tokens
        self.context = [*tokens] if request.return_context else []
        self.logprobs: list[TokenLogprob] = []
        """Of text that the parser still holds back."""
        self.thinking_tokens = 0

    def feed(self, output: Output, markers: Collection[str]) -> list[Segment]:
        """What the model wrote, read. `markers`: the added tokens of the vocabulary.

        Its last token of an opening marker counts as thinking, and a closing marker.
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


class Session:
    """See the module text. `markers`: the added tokens of the vocabulary and their ids.

    `wake` makes the main thread look again; helpers call it when a prompt is ready.
    """

    def __init__(
        self,
        engine: Engine,
        prompter: Prompter,
        dialect: OutputDialect,
        markers: Mapping[str, int],
        *,
        ledger: Ledger,
        default_context: int,
        longest_context: int,
        wake: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._prompter = prompter
        self._dialect = dialect
        self._markers = markers
        self._ledger = ledger
        self._default_context = default_context
        self._longest_context = longest_context
        self._wake = wake
        self._helpers = ThreadPoolExecutor(_HELPERS, thread_name_prefix="prompts")
        self._openers = ThreadPoolExecutor(_OPENERS, thread_name_prefix="pictures")
        """For requests with pictures, whose files may take long to open: texts do not wait for them."""
        self._small_openers = ThreadPoolExecutor(_SMALL_OPENERS, thread_name_prefix="small-pictures")
        self._preparing: dict[int, float] = {}
        """Since when, by `time.monotonic`."""
        self._prepared: queue.SimpleQueue[_Prepared] = queue.SimpleQueue()
        self._held: dict[int, _Ready] = {}
        """Prepared requests that wait for KV memory, oldest first."""
        self._next_up = 0
        """The held request that the engine was told to expect."""
        self._rows: dict[int, _Row] = {}
        self._progress: dict[int, tuple[int, int]] = {}
        self.preparations = 0
        """Prompts made and pictures opened so far, about: progress that is no engine step."""

    @property
    def open(self) -> int:
        """Requests that have not had their last word."""
        return len(self._preparing) + len(self._held) + len(self._rows)

    @property
    def waiting(self) -> int:
        """Requests that the engine does not know of yet."""
        return len(self._preparing) + len(self._held)

    def take_progress(self) -> dict[int, tuple[int, int]]:
        """Prompt tokens (read, all) of requests whose long prompts moved on since the last call."""
        progress, self._progress = self._progress, {}
        return progress

    def submit(self, request: GenerateRequest) -> None:
        """Take a request; its events come from `step`."""
        self._preparing[request.id] = time.monotonic()
        self._threads_for(request).submit(self._prepare, request)

    def _threads_for(self, request: GenerateRequest) -> ThreadPoolExecutor:
        images = [image for message in request.messages for image in message.images]
        if any(message.videos for message in request.messages):
            return self._openers
        if not images:
            return self._helpers
        return self._small_openers if cannot_take_long(images) else self._openers

    def cancel(self, number: int) -> None:
        """Forget a request; nothing is said about it any more."""
        self._preparing.pop(number, None)
        self._held.pop(number, None)
        if number in self._rows:
            self._engine.cancel(number)
            self._forget(number)

    def step(self) -> list[Event]:
        """Hand prepared prompts to the engine, let it do one step, and return what there is to say."""
        events: list[Event] = []
        while True:
            try:
                prepared = self._prepared.get_nowait()
            except queue.Empty:
                break
            if prepared.request.id in self._preparing:
                self._preparing.pop(prepared.request.id)
                events += self._receive(prepared)
        events += self._admit()
        if self._engine.has_work:
            for output in self._outputs():
                events += self._tell(output)
        return events

    @property
    def has_work(self) -> bool:
        """`step` has something to do now. Prompts in preparation announce themselves through `wake`."""
        return self._engine.has_work or bool(self._held) or not self._prepared.empty()

    def gathering_s(self, waited: float) -> float:
        """How much longer a step should wait, having waited so long: prompts that have just come are being made.

        Launching work keeps the helpers from running, and a burst read together takes little longer than its first
        prompt alone. One that takes long is not waited for.
        """
        if len(self._preparing) <= self._prepared.qsize() or waited >= _GATHER_S:
            return 0.0
        youngest = max(self._preparing.values())
        return max(min(youngest + _WORTH_WAITING_S - time.monotonic(), _GATHER_S - waited), 0.0)

    def close(self) -> None:
        self._helpers.shutdown(wait=False, cancel_futures=True)
        self._openers.shutdown(wait=False, cancel_futures=True)
        self._small_openers.shutdown(wait=False, cancel_futures=True)

    # ------------------------------------------------------------ into the engine
    def _context_of(self, request: GenerateRequest) -> int:
        return effective_context(request.limits.num_ctx, self._default_context, self._longest_context)

    def _prepare(self, request: GenerateRequest) -> None:
        """Runs in a helper thread."""
        outcome: _Ready | Failure
        try:
            self._check_wanted(request)
            outcome = self._made_ready(request)
        except _Unwanted:
            return
        except (PromptError, EngineError) as error:
            outcome = Failure(request.id, error.kind, error.message)
        except BaseException as error:  # a template or tokenizer may raise anything
            if not ends_only_its_request(error):
                raise
            log.error("[%s] the prompt could not be made", request.trace, exc_info=told(error))
            outcome = Failure(request.id, "internal", PROMPT_FAILED)
        self._prepared.put(_Prepared(request, outcome))
        self._wake()

    def _made_ready(self, request: GenerateRequest) -> _Ready:
        check = partial(self._check_wanted, request)
        prompt = self._prompter.build(request, self._context_of(request), check=check)
        opens = prompt.opens_thinking
        grammar = constrain(request, self._dialect, self._markers, opens_thinking=opens)
        if grammar is not None and not request.render_only:
            # A hostile or large grammar takes a while: not on the main thread.
            self._engine.compile(grammar)
        limit = limit_thinking(request, self._dialect, opens_thinking=opens)
        return _Ready(request, prompt, grammar, limit)

    def _check_wanted(self, request: GenerateRequest) -> None:
        self.preparations += 1
        if request.id not in self._preparing:
            raise _Unwanted

    def _receive(self, prepared: _Prepared) -> list[Event]:
        self.preparations += 1
        request, outcome = prepared.request, prepared.outcome
        if isinstance(outcome, Failure):
            return [outcome]
        prompt = outcome.prompt
        if request.render_only:
            count = len(prompt.tokens)
            return [Finish(id=request.id, reason="stop", prompt_tokens=count, rendered=prompt.text)]
        if not self._ledger.can_ever_hold(len(prompt.tokens) + 1):
            count, most = len(prompt.tokens), self._ledger.most_tokens
            text = f"the prompt of {count} tokens exceeds the context length that fits in memory ({most} tokens)"
            return [Failure(request.id, "too_long", text)]
        self._held[request.id] = outcome
        return []

    def _admit(self) -> list[Event]:
        """Hand on what there is memory for, in order: a large request is not overtaken for ever by small ones."""
        events: list[Event] = []
        for number, ready in list(self._held.items()):
            request = ready.request
            expected = expected_tokens(len(ready.prompt.tokens), self._context_of(request), request.limits)
            if not self._ledger.reserve(number, expected):
                if self._next_up != number:
                    self._next_up = number
                    self._engine.expect(ready.prompt.tokens, ready.prompt.media)
                break
            del self._held[number]
            failure = self._start(ready)
            if failure is not None:
                self._ledger.release(number)
                events.append(failure)
        return events

    def _start(self, ready: _Ready) -> Failure | None:
        request, prompt = ready.request, ready.prompt
        try:
            row = _Row(request, prompt, self._parser(request, prompt))
            self._engine.add(self._sequence(ready))
        except EngineError as error:
            return Failure(request.id, error.kind, error.message)
        except Exception as error:  # whatever is wrong with this request, the others go on
            log.exception("[%s] the request could not be started", request.trace)
            return Failure(request.id, "internal", running_failed(error))
        self._rows[request.id] = row
        return None

    def _forget(self, number: int) -> None:
        del self._rows[number]
        self._ledger.release(number)

    def _sequence(self, ready: _Ready) -> SequenceSpec:
        request, prompt = ready.request, ready.prompt
        return SequenceSpec(
            id=request.id,
            tokens=prompt.tokens,
            sampling=request.sampling,
            limits=request.limits,
            grammar=ready.grammar,
            thinking=ready.thinking,
            logprobs=request.logprobs,
            top_logprobs=request.top_logprobs,
            priority=request.priority,
            trace=request.trace,
            boundaries=[*prompt.boundaries],
            media=prompt.media,
        )

    def _parser(self, request: GenerateRequest, prompt: Prompt) -> OutputParser:
        return OutputParser(
            PLAIN if request.raw_prompt is not None else self._dialect,
            thinking=request.think is not False,
            tools=request.tools,
            opens_thinking=prompt.opens_thinking,
            one_call=request.one_call,
        )

    # ------------------------------------------------------------ out of the engine
    def _outputs(self) -> list[Output]:
        try:
            return self._engine.step()
        except Exception as error:
            # The engine isolates rows itself; what escapes it concerns all of them (device memory, a broken kernel).
            if not self._rows:
                raise
            log.exception("the engine failed with %d requests", len(self._rows))
            rows = list(self._rows)
            for number in rows:
                self._engine.cancel(number)
            return [Output(id=number, failure=("internal", running_failed(error))) for number in rows]

    def _tell(self, output: Output) -> list[Event]:
        row = self._rows.get(output.id)
        if row is None:
            return []
        if output.progress is not None:
            self._progress[output.id] = output.progress
        try:
            events = self._events(row, output)
        except Exception as error:  # host work of this row only
            log.exception("[%s] the output could not be read", row.request.trace)
            self._engine.cancel(output.id)
            events = [Failure(output.id, "internal", running_failed(error))]
        if events and not isinstance(events[-1], Delta):
            self._forget(output.id)
        return events

    def _events(self, row: _Row, output: Output) -> list[Event]:
        if output.failure is not None:
            return [Failure(output.id, *output.failure)]
        request = row.request
        if request.return_context:
            # The end-of-turn token too: what comes next is a new turn.
            row.context += output.tokens
        segments = row.feed(output, self._markers)
        if row.parser.ended and output.finish is None:
            self._engine.end(output.id)
        events: list[Event] = []
        events += deltas(output.id, segments, row.logprobs, last=output.finish is not None)
        if events:
            row.logprobs = []
        if output.finish is None:
            return events
        usage = output.usage or TokenUsage()
        finish = Finish(
            id=output.id,
            reason=output.finish,
            **msgspec.structs.asdict(usage),
            thinking_tokens=row.thinking_tokens,
            stop_string=output.stop_string,
            context=row.context,
        )
        return [*events, finish]


def cannot_take_long(images: Sequence[bytes]) -> bool:
    """Whether files are few, and small both in bytes and in the pixels that they say to have."""
    if len(images) > _SMALL_PICTURES or sum(map(len, images)) > _SMALL_BYTES:
        return False
    pixels = [declared_pixels(image) for image in images]
    return None not in pixels and sum(filter(None, pixels)) <= _SMALL_PIXELS


def deltas(number: int, segments: list[Segment], logprobs: list[TokenLogprob], *, last: bool) -> list[Delta]:
    """As few deltas as keep the order of `pieces`; the first carries the log probabilities.

    Log probabilities without any text wait for the next text, unless this is the last chance.
    """
    found: list[Delta] = []
    kind = ""
    for segment in segments:
        if segment.kind != kind:
            found.append(Delta(number))
            kind = segment.kind
        into = found[-1]
        match segment.kind:
            case "content":
                into.content += segment.text
            case "thinking":
                into.thinking += segment.text
            case "tool_call":
                into.tool_calls = [*into.tool_calls, _call(segment)]
    if logprobs and not found and last:
        found.append(Delta(number))
    if found:
        found[0].logprobs = logprobs
    return found


def _call(segment: Segment) -> ToolCall:
    if segment.call is None:
        raise ValueError("a tool call without its call")
    return segment.call
