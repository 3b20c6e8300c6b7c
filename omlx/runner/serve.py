"""What a runner does once MLX may be imported: load one model, then serve it until it is told to stop.

The main thread runs everything here and is the only one that touches MLX. It sleeps in `Channel.receive` while there
is nothing to do, and looks at the inbox between any two engine steps.
"""

from __future__ import annotations

import logging
import os
import queue
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Any, NamedTuple, Protocol

import mlx.core as mx
import msgspec
from omlx_cache import PrefixStore
from omlx_registry.sanitized_folder import without_inert_folder

from omlx.engine import loader
from omlx.engine.pacing import Turn
from omlx.engine.ranks import SOLO, Ranks
from omlx.messages.context import effective_context
from omlx.messages.failures import LoadError
from omlx.messages.frames import (
    CacheOp,
    Cancel,
    Embed,
    Events,
    Generate,
    GetStats,
    Heartbeat,
    Hello,
    HotCacheShare,
    Load,
    LoadFailed,
    PrefillProgress,
    PrefixUse,
    Ready,
    Reply,
    Rerank,
    Shutdown,
    ToRunner,
)
from omlx.messages.load_spec import LoadSpec
from omlx.messages.request import Event, Failure, Priority
from omlx.messages.speech import Transcribe
from omlx.messages.work_limits import WorkLimits
from omlx.runner import encode
from omlx.runner.build import BuiltModel, kv_budget, prepare
from omlx.runner.channel import Channel
from omlx.runner.job_service import send_answers
from omlx.runner.paced import PacedWork, wait_s
from omlx.runner.prompt import TOO_LONG

log = logging.getLogger("omlx.runner")

_IDLE_TICK_S = 1.0
"""How often an idle runner lets its KV store do housekeeping."""
_BEAT_S = 0.1
"""How old what a heartbeat says may be: making one costs as much as sending a token."""
CLOSE_BUDGET_S = 8.0
"""Most time for writing cached prefixes to disk at the end; the server waits a little longer than this."""


class LoadedService(Protocol):
    """What serves a model that is loaded."""

    def run(self) -> int:
        """Returns the exit code."""


class Runner:
    """One runner process. `blas`: the active BLAS. `join`: called for the first load, brings the processes of a
    distributed model together."""

    def __init__(self, channel: Channel, blas: str, join: Callable[[], Ranks] = lambda: SOLO) -> None:
        self._channel = channel
        self._blas = blas
        self._join = join
        self._ranks: Ranks | None = None

    def run(self) -> int:
        """Returns the exit code."""
        self._channel.send(self._hello())
        while True:
            for frame in self._channel.receive(wait=None):
                match frame:
                    case Shutdown():
                        self._channel.close()
                        return 0
                    case GetStats(id):  # the server asks whether this process answers
                        self._channel.send(Reply(id, {}))
                    case Load(spec):
                        service = self._load(spec)
                        if service is not None:
                            return service.run()

    def _hello(self) -> Hello:
        device = loader.device()
        return Hello(
            pid=os.getpid(),
            device=device,
            blas=self._blas,
            versions={name: version(name) for name in ("mlx", "mlx-lm")},
            device_memory=0 if device == "cpu" else loader.free_memory(),
        )

    def _load(self, spec: LoadSpec) -> LoadedService | None:
        """Load and say `Ready`, or say why not; the server decides what happens then."""
        service: LoadedService
        try:
            ranks = self._ranks = self._ranks or self._join()
            if spec.kind == "generate":
                served = prepare(spec, self._channel, ranks)
                ready, service = _ready(spec, served), Service(self._channel, served)
            elif ranks.size > 1:
                raise LoadError(f"{spec.name} cannot be loaded: only text generators run distributed")
            elif spec.kind == "transcribe":
                from omlx.runner import transcribe  # mlx-audio, which other models do without

                speech = transcribe.load(spec, self._channel)
                ready, service = transcribe.ready(spec, speech), transcribe.SpeechService(self._channel, speech)
            else:
                encoding = encode.load(spec, self._channel)
                ready = encode.ready(spec, encoding)
                service = encode.EncoderService(self._channel, encoding.vectors)
        except LoadError as error:
            self._channel.send(LoadFailed(without_inert_folder(str(error))))
        except Exception as error:  # whatever a folder from somewhere makes the loader do, it is an answer
            log.exception("loading %s failed", spec.path)
            text = f"{spec.name} cannot be loaded: {type(error).__name__}: {error}"
            self._channel.send(LoadFailed(without_inert_folder(text)))
        else:
            self._channel.send(ready)
            return service
        return None


def _ready(spec: LoadSpec, served: BuiltModel) -> Ready:
    model = served.model
    return Ready(
        weights=model.weights,
        memory_bytes=max(model.weight_bytes, int(mx.get_active_memory())),
        transient_bytes=model.transient_bytes,
        kv_bytes_per_token=model.kv_bytes_per_token,
        num_ctx=effective_context(0, spec.engine.context_length, model.max_context),
        longest_text=model.max_context * served.encoder.longest,
        checks=served.checks,
    )


class _Tokenized(NamedTuple):
    """A question about a text, with its token ids; None: it could not be tokenized."""

    question: CacheOp
    tokens: list[int] | None


class Service:
    """The loop around one served model."""

    def __init__(self, channel: Channel, served: BuiltModel) -> None:
        self._channel = channel
        self._served = served
        self._was_busy = False
        self._beat_due = 0.0
        self._paced = PacedWork(
            lambda: served.session.presence.joined(served.vectors.presence), self._hold, served.engine.rest
        )
        self._helper = ThreadPoolExecutor(1, thread_name_prefix="questions")
        self._tokenized: queue.SimpleQueue[_Tokenized] = queue.SimpleQueue()

    def run(self) -> int:
        """Returns the exit code."""
        session, vectors, store = self._served.session, self._served.vectors, self._served.store
        idle_wait = None if store is None else _IDLE_TICK_S
        self._beat()
        while True:
            turn = self._turn()
            if self._hear(idle_wait if turn is None else wait_s(turn)) or self._gather():
                return self._end()
            self._answer_tokenized()
            busy = session.has_work
            if self._paced.rests(turn, busy or vectors.has_work):
                self._beat()
                continue
            self._paced.begin(turn)
            if busy:
                self._tell(session.step())
            if vectors.has_work:
                answers = vectors.step(self._served.max_gap_s if busy else encode.CHUNK_S)
                self._beat()
                send_answers(self._channel, answers)
            elif not busy:
                self._beat()
                if store is not None:
                    store.tick()
            self._paced.end()

    def _turn(self) -> Turn | None:
        """Whether to step now, by the work limits; None where there is nothing to do."""
        if not self._served.session.has_work and not self._served.vectors.has_work:
            return None
        if self._paced.limited:
            self._tell(self._served.session.receive())  # so that new requests count
        return self._paced.turn()

    def _hold(self, classes: frozenset[Priority]) -> None:
        self._served.engine.holding.hold(classes)
        self._served.vectors.held = classes

    def _hear(self, wait: float | None) -> bool:
        """Take the frames that have arrived; wait up to `wait` s for the first. Returns whether one was `Shutdown`."""
        for frame in self._channel.receive(wait=wait):
            if isinstance(frame, Shutdown):
                return True
            self._take(frame)
        return False

    def _gather(self) -> bool:
        """Wait for prompts that will be there in a moment, so that they are read together. Whether the end has come."""
        session, began = self._served.session, time.monotonic()
        while session.has_work and (left := session.gathering_s(time.monotonic() - began)):
            if self._hear(left):
                return True
        return False

    def _take(self, frame: ToRunner) -> None:
        served = self._served
        match frame:
            case Generate(request):
                served.session.submit(request)
            case Cancel(id):
                served.session.cancel(id)
                served.vectors.cancel(id)
            case HotCacheShare():
                served.ledger.resize(kv_budget(frame.memory_bytes, served.model))
                if served.store is not None:
                    served.store.resize_hot(frame.hot_bytes)
                    served.engine.followers.change_store(hot_bytes=frame.hot_bytes)
            case WorkLimits():
                served.engine.holding.limit(frame)
                self._paced.limit(frame)
            case GetStats(id):
                self._channel.send(Reply(id, self._stats()))
            case CacheOp():
                self._cache(frame)
            case Embed() | Rerank():
                served.vectors.submit(frame)
            case Transcribe(id=id):
                self._channel.send(Events([Failure(id, "unsupported", "this model does not support transcription")]))
            case Load() | Shutdown():
                log.warning("a %s frame came out of turn", type(frame).__name__)

    def _tell(self, events: list[Event]) -> None:
        for id, (done, total) in self._served.session.take_progress().items():
            self._channel.send(PrefillProgress(id, done, total))
        busy = self._served.session.open > 0
        if busy != self._was_busy or time.monotonic() >= self._beat_due:
            self._beat()
        if self._was_busy and not busy:
            # Ahead of the last word, so that who hears it and asks for the counters gets the final ones.
            self._channel.send(self._heartbeat())
        self._was_busy = busy
        if events:
            self._channel.send(Events(events))

    def _beat(self) -> None:
        self._beat_due = time.monotonic() + _BEAT_S
        self._channel.beat(self._heartbeat())

    def _heartbeat(self) -> Heartbeat:
        engine, session, vectors = self._served.engine, self._served.session, self._served.vectors
        guessed, accepted = engine.guesses or (0, 0)
        return Heartbeat(
            steps=engine.steps + session.preparations + vectors.progress + self._paced.looks,
            running=engine.running + vectors.running,
            waiting=engine.waiting + session.waiting + vectors.waiting,
            memory_bytes=int(mx.get_active_memory()),
            max_batch=engine.max_batch,
            buffer_bytes=int(mx.get_cache_memory()),
            reserved_bytes=self._served.ledger.reserved_bytes,
            decode_steps=engine.decode_steps,
            decoded_rows=engine.decoded_rows,
            tokens_read=engine.tokens_read,
            tokens_generated=engine.tokens_generated,
            guessed=guessed,
            accepted=accepted,
            prefixes=self._prefixes(),
        )

    def _prefixes(self) -> PrefixUse | None:
        store = self._served.store
        if store is None or not store.layout.supported:
            return None
        use = store.usage
        return PrefixUse(
            lookups=use.lookups,
            hits=use.hits,
            tokens_looked_up=use.tokens_looked_up,
            tokens_from_ram=use.tokens_from_ram,
            tokens_from_disk=use.tokens_from_disk,
        )

    def _stats(self) -> dict[str, Any]:
        model, store = self._served.model, self._served.store
        return {
            **msgspec.to_builtins(self._heartbeat()),
            "open": self._served.session.open + self._served.vectors.open,
            "peak_memory_bytes": int(mx.get_peak_memory()),
            "decode_step_s": model.step_s,
            "prefill_token_s": model.token_s,
            "cache": msgspec.to_builtins(store.stats()) if store is not None else None,
            "vision": msgspec.to_builtins(model.vision.stats()) if model.vision is not None else None,
        }

    def _cache(self, question: CacheOp) -> None:
        store = self._served.store
        if store is None:
            self._channel.send(Reply(question.id, {"enabled": False}))
            return
        body: dict[str, Any] = {"enabled": True}
        match question.op:
            case "stats":
                body |= msgspec.to_builtins(store.stats())
            case "clear":
                body["records"] = store.clear()
                if (vision := self._served.model.vision) is not None:
                    vision.cache.clear()
                self._served.engine.followers.change_store(clear=True)
            case "checkpoint":
                body["complete"] = store.checkpoint(CLOSE_BUDGET_S)
            case "explain" | "save" if question.text:
                self._helper.submit(self._tokenize, question)
                return
            case "explain":
                body |= self._explain(store, [])
            case "save" | "load":
                body |= self._session(store, question, None)
        self._channel.send(Reply(question.id, body))

    def _tokenize(self, question: CacheOp) -> None:
        """Runs in the helper thread: a long text takes a while."""
        tokens = None
        try:
            tokens = self._served.encoder.encode(question.text, add_special=True, most=self._served.model.max_context)
        except Exception:  # a tokenizer may raise anything
            log.exception("the text of a question about the cache could not be tokenized")
        self._tokenized.put(_Tokenized(question, tokens))
        self._channel.wake()

    def _answer_tokenized(self) -> None:
        while not self._tokenized.empty():
            question, tokens = self._tokenized.get()
            store = self._served.store
            if store is None or tokens is None:
                body: dict[str, Any] = {"error": "the prompt could not be tokenized"}
            elif len(tokens) > self._served.model.max_context:
                body = {"error": TOO_LONG}
            elif question.op == "explain":
                body = self._explain(store, tokens)
            else:
                body = self._session(store, question, tokens)
            self._channel.send(Reply(question.id, {"enabled": True, **body}))

    def _session(self, store: PrefixStore, question: CacheOp, tokens: list[int] | None) -> dict[str, Any]:
        try:
            if question.op == "load":
                return {"bytes": store.sessions.load(question.session)}
            return {"tokens": store.sessions.save(question.session, tokens)}
        except ValueError as error:
            return {"error": str(error)}

    def _explain(self, store: PrefixStore, tokens: list[int]) -> dict[str, Any]:
        explanation = store.explain(tokens)
        decode = self._served.model.tokenizer.decode
        return {
            **msgspec.to_builtins(explanation),
            "prompt_text": decode(explanation.prompt_tokens),
            "stored_text": decode(explanation.stored_tokens),
        }

    def _end(self) -> int:
        """Free the model in order: MLX aborts the process where a thread ends with work in flight."""
        served = self._served
        self._helper.shutdown(wait=False, cancel_futures=True)
        served.session.close()
        served.vectors.close()
        served.engine.stop_followers()
        if served.store is not None:
            served.store.checkpoint(CLOSE_BUDGET_S)
        served.engine.close()
        served.ranks.gather(True, bool)  # every rank has written its part
        self._channel.close()
        return 0
