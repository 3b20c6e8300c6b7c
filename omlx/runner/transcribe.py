"""Serves a speech-to-text model, without the text engine.

As in `serve`, the main thread runs everything here and reads the inbox between steps.
"""

from __future__ import annotations

import logging
from typing import Any

import mlx.core as mx
import msgspec

from omlx.engine.precision import use_tf32
from omlx.engine.speech.network import LoadedSpeech, load_speech
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
from omlx.runner.transcribe_jobs import Answer, TranscribeJobs

log = logging.getLogger("omlx.runner")

_ONLY_SPEECH = "this model only supports transcription"


def load(spec: LoadSpec, channel: Channel) -> LoadedSpeech:
    """Load the model, with progress frames. Raises LoadError."""
    use_tf32(spec.tf32)
    return load_speech(spec, lambda done, total: channel.send(Loading(done, total)))


def ready(spec: LoadSpec, loaded: LoadedSpeech) -> Ready:
    return Ready(
        weights=loaded.weights,
        memory_bytes=max(loaded.weight_bytes, int(mx.get_active_memory())),
        kv_bytes_per_token=0,
        num_ctx=spec.engine.context_length,
    )


class SpeechService:
    """The loop around one speech model."""

    def __init__(self, channel: Channel, loaded: LoadedSpeech) -> None:
        self._channel = channel
        self._jobs = TranscribeJobs(channel.wake, loaded.network)

    def run(self) -> int:
        """Returns the exit code."""
        jobs, was_busy = self._jobs, False
        self._channel.beat(self._heartbeat())
        while True:
            for frame in self._channel.receive(wait=0.0 if jobs.has_work else None):
                if isinstance(frame, Shutdown):
                    jobs.close()
                    self._channel.close()
                    return 0
                self._take(frame)
            answers = jobs.step() if jobs.has_work else []
            self._channel.beat(self._heartbeat())
            if was_busy and jobs.open == 0:
                self._channel.send(self._heartbeat())
            was_busy = jobs.open > 0
            for answer in answers:
                self._send(answer)

    def _send(self, answer: Answer) -> None:
        self._channel.send(Events([answer]) if isinstance(answer, Failure) else answer)

    def _take(self, frame: ToRunner) -> None:
        match frame:
            case Transcribe():
                self._jobs.submit(frame)
            case Cancel(id):
                self._jobs.cancel(id)
            case GetStats(id):
                self._channel.send(Reply(id, self._stats()))
            case CacheOp(id=id):
                self._channel.send(Reply(id, {"enabled": False}))
            case Generate(request):
                self._send(Failure(request.id, "unsupported", _ONLY_SPEECH))
            case Embed(id=id) | Rerank(id=id):
                self._send(Failure(id, "unsupported", _ONLY_SPEECH))
            case HotCacheShare():
                pass  # no prefix cache
            case _:
                log.warning("a %s frame came out of turn", type(frame).__name__)

    def _heartbeat(self) -> Heartbeat:
        jobs = self._jobs
        return Heartbeat(
            steps=jobs.progress,
            running=jobs.running,
            waiting=jobs.waiting,
            memory_bytes=int(mx.get_active_memory()),
            max_batch=jobs.most_running,
            buffer_bytes=int(mx.get_cache_memory()),
            tokens_generated=jobs.generated,
        )

    def _stats(self) -> dict[str, Any]:
        return {
            **msgspec.to_builtins(self._heartbeat()),
            "open": self._jobs.open,
            "peak_memory_bytes": int(mx.get_peak_memory()),
            "cache": None,
        }
