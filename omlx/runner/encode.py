"""Serving a model that is no text generator: an embedder or a reranker, without the generating engine around it.

As in `serve`, the main thread runs everything here and looks at the inbox between any two chunks.
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import mlx.core as mx
import msgspec

from omlx.engine.encode.embed import load_embedder
from omlx.engine.encode.rerank import load_reranker
from omlx.engine.precision import use_tf32
from omlx.messages.failures import LoadError
from omlx.messages.frames import (
    CacheOp,
    Cancel,
    Embed,
    Events,
    Generate,
    GetStats,
    Heartbeat,
    HotCacheShare,
    Loading,
    Ready,
    Reply,
    Rerank,
    Shutdown,
    ToRunner,
)
from omlx.messages.load_spec import LoadSpec
from omlx.messages.request import Failure
from omlx.messages.speech import Transcribe
from omlx.runner.channel import Channel
from omlx.runner.encode_jobs import Answer, EncodeJobs

log = logging.getLogger("omlx.runner")

CHUNK_S = 0.25
"""What a chunk may take where nobody waits for tokens: short enough that a cancelled job is soon gone."""


class Encoding(NamedTuple):
    """A loaded encoder: its jobs, and how its weights are held."""

    vectors: EncodeJobs
    weights: str
    weight_bytes: int


def load(spec: LoadSpec, channel: Channel) -> Encoding:
    """Raises LoadError."""

    def progress(done: int, total: int) -> None:
        channel.send(Loading(done, total))

    use_tf32(spec.tf32)
    match spec.kind:
        case "embed":
            embedder, weights, size = load_embedder(spec, progress)
            return Encoding(EncodeJobs(channel.wake, embedder=embedder, reranker=None), weights, size)
        case "rerank":
            reranker, weights, size = load_reranker(spec, progress)
            return Encoding(EncodeJobs(channel.wake, embedder=None, reranker=reranker), weights, size)
    raise LoadError(f"{spec.name} is no encoder")


def ready(spec: LoadSpec, encoding: Encoding) -> Ready:
    return Ready(
        weights=encoding.weights,
        memory_bytes=max(encoding.weight_bytes, int(mx.get_active_memory())),
        kv_bytes_per_token=0,
        num_ctx=spec.engine.context_length,
    )


def send_answers(channel: Channel, answers: list[Answer]) -> None:
    """Each answer in its own frame, failures as events."""
    for answer in answers:
        channel.send(Events([answer]) if isinstance(answer, Failure) else answer)


class EncoderService:
    """The loop around one encoder."""

    def __init__(self, channel: Channel, vectors: EncodeJobs) -> None:
        self._channel = channel
        self._vectors = vectors

    def run(self) -> int:
        """Returns the exit code."""
        vectors, was_busy = self._vectors, False
        self._channel.beat(self._heartbeat())
        while True:
            for frame in self._channel.receive(wait=0.0 if vectors.has_work else None):
                if isinstance(frame, Shutdown):
                    vectors.close()
                    self._channel.close()
                    return 0
                self._take(frame)
            answers = vectors.step(CHUNK_S) if vectors.has_work else []
            self._channel.beat(self._heartbeat())
            if was_busy and vectors.open == 0:
                # Rows of all widths leave buffers of all sizes behind.
                mx.clear_cache()
                self._channel.send(self._heartbeat())
            was_busy = vectors.open > 0
            send_answers(self._channel, answers)

    def _take(self, frame: ToRunner) -> None:
        match frame:
            case Embed() | Rerank():
                self._vectors.submit(frame)
            case Cancel(id):
                self._vectors.cancel(id)
            case GetStats(id):
                self._channel.send(Reply(id, self._stats()))
            case CacheOp(id=id):
                self._channel.send(Reply(id, {"enabled": False}))
            case Generate(request):
                failure = Failure(request.id, "unsupported", "this model does not generate text")
                self._channel.send(Events([failure]))
            case Transcribe(id=id):
                self._channel.send(Events([Failure(id, "unsupported", "this model does not support transcription")]))
            case HotCacheShare():
                pass  # an encoder caches no prefixes
            case _:
                log.warning("a %s frame came out of turn", type(frame).__name__)

    def _heartbeat(self) -> Heartbeat:
        vectors = self._vectors
        return Heartbeat(
            steps=vectors.progress,
            running=vectors.running,
            waiting=vectors.waiting,
            memory_bytes=int(mx.get_active_memory()),
            max_batch=vectors.most_rows,
            buffer_bytes=int(mx.get_cache_memory()),
        )

    def _stats(self) -> dict[str, Any]:
        return {
            **msgspec.to_builtins(self._heartbeat()),
            "open": self._vectors.open,
            "peak_memory_bytes": int(mx.get_peak_memory()),
            "cache": None,
        }
