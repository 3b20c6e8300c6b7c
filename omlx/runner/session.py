"""The *session* of a runner: all its open requests, from frame to prompt to engine and back to events.

The main thread calls everything here; only the preparation of prompts runs in helper threads. A fault in the host work
of one request (its template, its parser, its grammar) ends that request alone.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from omlx.dialect.output import PLAIN, OutputDialect, OutputParser, Piece
from omlx.engine.engine import Engine
from omlx.engine.grammar import Grammar
from omlx.engine.sequence import EngineError, Output, SequenceSpec
from omlx.request import Delta, Event, Failure, FailureKind, Finish, GenerateRequest, TokenLogprob, ToolCall
from omlx.runner.ledger import Ledger, expected_tokens
from omlx.runner.prompt import Prompt, Prompter, PromptError

log = logging.getLogger("omlx.runner")

RUNNING_FAILED = "an error was encountered while running the model: "
"""Ollama's words; the reason follows."""
_HELPERS = 2


class _Prepared(NamedTuple):
    request: GenerateRequest
    prompt: Prompt | None
    failure: tuple[FailureKind, str] | None


class _Row:
    """One request that the engine works on."""

    __slots__ = ("context", "logprobs", "parser", "request")

    def __init__(self, request: GenerateRequest, prompt: Prompt, parser: OutputParser) -> None:
        self.request = request
        self.parser = parser
        self.context = [*prompt.tokens] if request.return_context else []
        self.logprobs: list[TokenLogprob] = []
        """Of text that the parser still holds back."""


class Session:
    """See the module text. `wake` makes the main thread look again; helpers call it when a prompt is ready."""

    def __init__(
        self,
        engine: Engine,
        prompter: Prompter,
        dialect: OutputDialect,
        *,
        ledger: Ledger,
        default_context: int,
        longest_context: int,
        wake: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._prompter = prompter
        self._dialect = dialect
        self._ledger = ledger
        self._default_context = default_context
        self._longest_context = longest_context
        self._wake = wake
        self._helpers = ThreadPoolExecutor(_HELPERS, thread_name_prefix="prompts")
        self._preparing: set[int] = set()
        self._prepared: queue.SimpleQueue[_Prepared] = queue.SimpleQueue()
        self._held: dict[int, tuple[GenerateRequest, Prompt]] = {}
        """Prepared requests that wait for KV memory, oldest first."""
        self._rows: dict[int, _Row] = {}
        self._progress: dict[int, tuple[int, int]] = {}
        self.prompts = 0
        """Prompts prepared so far: progress that is no engine step."""

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
        self._preparing.add(request.id)
        self._helpers.submit(self._prepare, request)

    def cancel(self, number: int) -> None:
        """Forget a request; nothing is said about it any more."""
        self._preparing.discard(number)
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
                self._preparing.discard(prepared.request.id)
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

    def close(self) -> None:
        self._helpers.shutdown(wait=False, cancel_futures=True)

    # ------------------------------------------------------------ into the engine
    def _context_of(self, request: GenerateRequest) -> int:
        wanted = request.limits.num_ctx or self._default_context
        return max(2, min(wanted, self._longest_context))

    def _prepare(self, request: GenerateRequest) -> None:
        """Runs in a helper thread."""
        prompt, failure = None, None
        try:
            prompt = self._prompter.build(request, self._context_of(request))
        except PromptError as error:
            failure = (error.kind, error.message)
        except Exception as error:  # a template or tokenizer may raise anything
            log.exception("request %d: its prompt could not be made", request.id)
            failure = ("internal", f"the prompt could not be made: {error}")
        self._prepared.put(_Prepared(request, prompt, failure))
        self._wake()

    def _receive(self, prepared: _Prepared) -> list[Event]:
        self.prompts += 1
        request, prompt = prepared.request, prepared.prompt
        if prompt is None:
            kind, message = prepared.failure or ("internal", "the prompt could not be made")
            return [Failure(request.id, kind, message)]
        if request.render_only:
            count = len(prompt.tokens)
            return [Finish(id=request.id, reason="stop", prompt_tokens=count, rendered=prompt.text)]
        if not self._ledger.can_ever_hold(len(prompt.tokens) + 1):
            count, most = len(prompt.tokens), self._ledger.most_tokens
            text = f"the prompt of {count} tokens exceeds the context length that fits in memory ({most} tokens)"
            return [Failure(request.id, "too_long", text)]
        self._held[request.id] = (request, prompt)
        return []

    def _admit(self) -> list[Event]:
        """Hand on what there is memory for, in order: a large request is not overtaken for ever by small ones."""
        events: list[Event] = []
        for number, (request, prompt) in list(self._held.items()):
            expected = expected_tokens(len(prompt.tokens), self._context_of(request), request.limits)
            if not self._ledger.reserve(number, expected):
                break
            del self._held[number]
            failure = self._start(request, prompt)
            if failure is not None:
                self._ledger.release(number)
                events.append(failure)
        return events

    def _start(self, request: GenerateRequest, prompt: Prompt) -> Failure | None:
        try:
            row = _Row(request, prompt, self._parser(request, prompt))
            self._engine.add(self._sequence(request, prompt))
        except EngineError as error:
            return Failure(request.id, error.kind, error.message)
        except Exception as error:  # whatever is wrong with this request, the others go on
            log.exception("request %d could not be started", request.id)
            return Failure(request.id, "internal", RUNNING_FAILED + str(error))
        self._rows[request.id] = row
        return None

    def _forget(self, number: int) -> None:
        del self._rows[number]
        self._ledger.release(number)

    def _sequence(self, request: GenerateRequest, prompt: Prompt) -> SequenceSpec:
        return SequenceSpec(
            id=request.id,
            tokens=prompt.tokens,
            sampling=request.sampling,
            limits=request.limits,
            grammar=self._grammar(request, prompt),
            logprobs=request.logprobs,
            top_logprobs=request.top_logprobs,
            priority=request.priority,
        )

    def _parser(self, request: GenerateRequest, prompt: Prompt) -> OutputParser:
        return OutputParser(
            PLAIN if request.raw_prompt is not None else self._dialect,
            thinking=request.think is not False,
            tools=request.tools,
            opens_thinking=prompt.opens_thinking,
        )

    def _grammar(self, request: GenerateRequest, prompt: Prompt) -> Grammar | None:
        """The constraint on the answer; thinking in front of it stays free, where the model thinks at all."""
        if request.format is None:
            return None
        dialect = PLAIN if request.raw_prompt is not None and not prompt.opens_thinking else self._dialect
        opening, after = dialect.before_answer(
            opens_thinking=prompt.opens_thinking, thinking=request.think is not False
        )
        if request.format == "json":
            return Grammar(kind="json", opening=opening, after=after)
        return Grammar(kind="schema", source=request.format, opening=opening, after=after)

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
            return [Output(id=number, failure=("internal", RUNNING_FAILED + str(error))) for number in rows]

    def _tell(self, output: Output) -> list[Event]:
        row = self._rows.get(output.id)
        if row is None:
            return []
        if output.progress is not None:
            self._progress[output.id] = output.progress
        try:
            events = self._events(row, output)
        except Exception as error:  # host work of this row only
            log.exception("request %d: its output could not be read", output.id)
            self._engine.cancel(output.id)
            events = [Failure(output.id, "internal", RUNNING_FAILED + str(error))]
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
        pieces = row.parser.feed(output.text) if output.text else []
        if output.finish is not None:
            pieces += row.parser.finish()
        row.logprobs += output.logprobs
        events: list[Event] = []
        events += deltas(output.id, pieces, row.logprobs, last=output.finish is not None)
        if events:
            row.logprobs = []
        if output.finish is None:
            return events
        usage = output.usage
        events.append(
            Finish(
                id=output.id,
                reason=output.finish,
                prompt_tokens=usage.prompt_tokens if usage else 0,
                cached_tokens=usage.cached_tokens if usage else 0,
                completion_tokens=usage.completion_tokens if usage else 0,
                prompt_ns=usage.prompt_ns if usage else 0,
                generation_ns=usage.generation_ns if usage else 0,
                queue_ns=usage.queue_ns if usage else 0,
                stop_string=output.stop_string,
                context=row.context,
            )
        )
        return events


def deltas(number: int, pieces: list[Piece], logprobs: list[TokenLogprob], *, last: bool) -> list[Delta]:
    """As few deltas as keep the order of `pieces`; the first carries the log probabilities.

    Log probabilities without any text wait for the next text, unless this is the last chance.
    """
    found: list[Delta] = []
    kind = ""
    for piece in pieces:
        if piece.kind != kind:
            found.append(Delta(number))
            kind = piece.kind
        into = found[-1]
        match piece.kind:
            case "content":
                into.content += piece.text
            case "thinking":
                into.thinking += piece.text
            case "tool_call":
                into.tool_calls = [*into.tool_calls, _call(piece)]
    if logprobs and not found and last:
        found.append(Delta(number))
    if found:
        found[0].logprobs = logprobs
    return found


def _call(piece: Piece) -> ToolCall:
    if piece.call is None:
        raise ValueError("a tool call without its call")
    return piece.call
