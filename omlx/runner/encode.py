"""Serving a model that is no text generator: an embedder or a reranker, without the generating engine around it."""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx

from omlx.engine.encode.embed import load_embedder
from omlx.engine.encode.rerank import load_reranker
from omlx.engine.precision import use_tf32
from omlx.messages.failures import LoadError
from omlx.messages.frames import Embed, Generate, Heartbeat, Loading, Ready, Rerank, ToRunner
from omlx.messages.load_spec import LoadSpec
from omlx.messages.speech import Transcribe
from omlx.runner.channel import Channel
from omlx.runner.encode_jobs import Answer, EncodeJobs
from omlx.runner.job_service import JobService

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


class EncoderService(JobService):
    """The loop around one encoder."""

    def __init__(self, channel: Channel, vectors: EncodeJobs) -> None:
        self._vectors = vectors
        unsupported: dict[type, str] = {
            Generate: "this model does not generate text",
            Transcribe: "this model does not support transcription",
        }
        super().__init__(channel, vectors, unsupported)

    def _submit(self, frame: ToRunner) -> None:
        assert isinstance(frame, Embed | Rerank)
        self._vectors.submit(frame)

    def _step(self) -> list[Answer]:
        return self._vectors.step(CHUNK_S)

    def _idle(self) -> None:
        # Rows of all widths leave buffers of all sizes behind.
        mx.clear_cache()

    def _heartbeat(self) -> Heartbeat:
        vectors = self._vectors
        return Heartbeat(
            steps=vectors.progress + self._paced.looks,
            running=vectors.running,
            waiting=vectors.waiting,
            memory_bytes=int(mx.get_active_memory()),
            max_batch=vectors.most_rows,
            buffer_bytes=int(mx.get_cache_memory()),
        )
