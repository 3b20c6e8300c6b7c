"""The *session* of a runner: all its open requests, from frame to prompt to engine and back to events.

The main thread calls everything here; only the preparation of prompts runs in helper threads. A fault in the host
work of one request (its template, its parser, its grammar) ends that request alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from omlx.engine.engine import Engine
from omlx.engine.pacing import Presence
from omlx.engine.panics import told
from omlx.engine.sequence import EngineError, Output, SequenceSpec
from omlx.engine.vision.image_size import declared_pixels
from omlx.messages.constraint import Grammar, ThinkLimit
from omlx.messages.context import effective_context
from omlx.messages.failures import PROMPT_FAILED, running_failed
from omlx.messages.request import Delta, Event, Failure, Finish, GenerateRequest
from omlx.prompting.constraint import constrain, limit_thinking
from omlx.prompting.output import PLAIN, OutputDialect, OutputParser
from omlx.runner.ledger import Ledger, expected_tokens
from omlx.runner.preparation import Preparation
from omlx.runner.prompt import Prompt, Prompter, PromptError
from omlx.runner.row import EngineRow

log = logging.getLogger("omlx.runner")

_GATHER_S = 0.03
"""The longest that a step waits for prompts that are being made."""
_WORTH_WAITING_S = 0.03
"""A prompt that takes longer to make is not waited for."""
_COMPILING = "grammars"
_THREADS = {"prompts": 2, "pictures": 3, "small-pictures": 2, _COMPILING: 3}
"""Pictures, and grammars that are new, may take long: texts do not wait for them. Their threads mostly wait: other
processes do the work."""
_SMALL_PICTURES, _SMALL_BYTES, _SMALL_PIXELS = 2, 1 << 20, 10_000_000
"""Of a request whose pictures cannot take long: it does not wait for others, whose files may be made to."""


class _Ready(NamedTuple):
    """A request with all that the engine needs for it."""

    request: GenerateRequest
    prompt: Prompt
    grammar: Grammar | None
    thinking: ThinkLimit | None


class _PromptJob:
    """A request in preparation."""

    def __init__(self, request: GenerateRequest, ready: _Ready | None = None) -> None:
        self.request = request
        self.ready = ready
        """None until its prompt is made; its grammar may not be compiled yet."""


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
        self._preparation = Preparation(self._prepare, failure=self._failure, threads=_THREADS, wake=wake)
        self._held: dict[int, _Ready] = {}
        """Prepared requests that wait for KV memory, oldest first."""
        self._next_up = 0
        """The held request that the engine was told to expect."""
        self._rows: dict[int, EngineRow] = {}
        self._progress: dict[int, tuple[int, int]] = {}

    @property
    def preparations(self) -> int:
        """Prompts made and pictures opened so far, about: progress that is no engine step."""
        return self._preparation.progress

    @property
    def open(self) -> int:
        """Requests that have not had their last word."""
        return len(self._preparation) + len(self._held) + len(self._rows)

    @property
    def waiting(self) -> int:
        """Requests that the engine does not know of yet."""
        return len(self._preparation) + len(self._held)

    def take_progress(self) -> dict[int, tuple[int, int]]:
        """Prompt tokens (read, all) of requests whose long prompts moved on since the last call."""
        progress, self._progress = self._progress, {}
        return progress

    def submit(self, request: GenerateRequest) -> None:
        """Take a request; its events come from `step`."""
        self._preparation.submit(request.id, _PromptJob(request), _threads_for(request))

    def cancel(self, number: int) -> None:
        """Forget a request; nothing is said about it any more."""
        self._preparation.cancel(number)
        self._held.pop(number, None)
        if number in self._rows:
            self._engine.cancel(number)
            self._forget(number)

    def step(self) -> list[Event]:
        """Hand prepared prompts to the engine, let it do one step, and return what there is to say."""
        events = self.receive()
        if self._engine.has_work:
            for output in self._outputs():
                events += self._tell(output)
        return events

    def receive(self) -> list[Event]:
        """Hand prepared prompts to the engine, as `step` does first."""
        events: list[Event] = []
        for job, failure in self._preparation.take():
            events += self._receive(job, failure)
        return events + self._admit()

    @property
    def presence(self) -> Presence:
        """The classes that have requests in the engine or waiting for memory."""
        waiting = [ready.request.priority for ready in self._held.values()]
        blocked = "interactive" in waiting
        held = Presence(blocked, "batch" in waiting, "background" in waiting, urgent=blocked, blocked=blocked)
        return self._engine.presence.joined(held)

    @property
    def has_work(self) -> bool:
        """`step` has something to do now. Prompts in preparation announce themselves through `wake`."""
        return self._engine.has_work or bool(self._held) or self._preparation.complete > 0

    def gathering_s(self, waited: float) -> float:
        """How much longer a step should wait, having waited so long: prompts that have just come are being made.

        Launching work keeps the helpers from running, and a burst read together takes little longer than its first
        prompt alone. One that takes long is not waited for.
        """
        youngest = self._preparation.youngest
        if youngest is None or waited >= _GATHER_S:
            return 0.0
        return max(min(youngest + _WORTH_WAITING_S - time.monotonic(), _GATHER_S - waited), 0.0)

    def close(self) -> None:
        self._preparation.close()

    # ------------------------------------------------------------ into the engine
    def _context_of(self, request: GenerateRequest) -> int:
        return effective_context(request.limits.num_ctx, self._default_context, self._longest_context)

    def _prepare(self, job: _PromptJob) -> str:
        """Runs in a helper thread."""
        request = job.request
        check = partial(self._preparation.check, request.id)
        check()
        if job.ready is None:
            job.ready = self._made_ready(request, check)
            grammar = job.ready.grammar
            compiled = grammar is None or request.render_only or self._engine.is_compiled(grammar)
            return "" if compiled else _COMPILING
        if job.ready.grammar is not None:
            self._engine.compile(job.ready.grammar, check)
        return ""

    def _made_ready(self, request: GenerateRequest, check: Callable[[], None]) -> _Ready:
        prompt = self._prompter.build(request, self._context_of(request), check=check)
        opens = prompt.opens_thinking
        grammar = constrain(request, self._dialect, self._markers, opens_thinking=opens)
        return _Ready(request, prompt, grammar, limit_thinking(request, self._dialect, opens_thinking=opens))

    def _failure(self, job: _PromptJob, error: BaseException) -> Failure:
        if isinstance(error, PromptError | EngineError):
            return Failure(job.request.id, error.kind, error.message)
        log.error("[%s] the prompt could not be made", job.request.trace, exc_info=told(error))
        return Failure(job.request.id, "internal", PROMPT_FAILED)

    def _receive(self, job: _PromptJob, failure: Failure | None) -> list[Event]:
        request, ready = job.request, job.ready
        if failure is not None:
            return [failure]
        assert ready is not None
        prompt = ready.prompt
        if request.render_only:
            count = len(prompt.tokens)
            return [Finish(id=request.id, reason="stop", prompt_tokens=count, rendered=prompt.text)]
        if not self._ledger.can_ever_hold(len(prompt.tokens) + 1):
            count, most = len(prompt.tokens), self._ledger.most_tokens
            text = f"the prompt of {count} tokens exceeds the context length that fits in memory ({most} tokens)"
            return [Failure(request.id, "too_long", text)]
        self._held[request.id] = ready
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
            if ready.grammar is not None and not self._engine.is_compiled(ready.grammar):
                # Many other grammars have come since: not on the main thread.
                self._ledger.release(number)
                self._preparation.submit(number, _PromptJob(request, ready), _COMPILING)
                continue
            failure = self._start(ready)
            if failure is not None:
                self._ledger.release(number)
                events.append(failure)
        return events

    def _start(self, ready: _Ready) -> Failure | None:
        request, prompt = ready.request, ready.prompt
        try:
            row = EngineRow(request, prompt, self._parser(request, prompt))
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

    def _events(self, row: EngineRow, output: Output) -> list[Event]:
        if output.failure is not None:
            return [Failure(output.id, *output.failure)]
        events = row.events(output, self._markers)
        if row.parser.ended and output.finish is None:
            self._engine.end(output.id)
        return events


def _threads_for(request: GenerateRequest) -> str:
    images = [image for message in request.messages for image in message.images]
    if any(message.videos for message in request.messages):
        return "pictures"
    if not images:
        return "prompts"
    return "small-pictures" if cannot_take_long(images) else "pictures"


def cannot_take_long(images: Sequence[bytes]) -> bool:
    """Whether files are few, and small both in bytes and in the pixels that they say to have."""
    if len(images) > _SMALL_PICTURES or sum(map(len, images)) > _SMALL_BYTES:
        return False
    pixels = [declared_pixels(image) for image in images]
    return None not in pixels and sum(filter(None, pixels)) <= _SMALL_PIXELS
