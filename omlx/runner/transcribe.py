"""Serves a speech-to-text model, without the text engine."""

from __future__ import annotations

import mlx.core as mx

from omlx.engine.precision import use_tf32
from omlx.engine.speech.network import LoadedSpeech, load_speech
from omlx.messages.frames import Embed, Generate, Heartbeat, Loading, Ready, Rerank, ToRunner
from omlx.messages.load_spec import LoadSpec
from omlx.messages.speech import Transcribe
from omlx.runner.channel import Channel
from omlx.runner.job_service import JobService
from omlx.runner.transcribe_jobs import Answer, TranscribeJobs

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


class SpeechService(JobService):
    """The loop around one speech model."""

    def __init__(self, channel: Channel, loaded: LoadedSpeech) -> None:
        self._jobs = TranscribeJobs(channel.wake, loaded.network)
        super().__init__(channel, self._jobs, dict.fromkeys((Generate, Embed, Rerank), _ONLY_SPEECH))

    def _submit(self, frame: ToRunner) -> None:
        assert isinstance(frame, Transcribe)
        self._jobs.submit(frame)

    def _step(self) -> list[Answer]:
        return self._jobs.step()

    def _heartbeat(self) -> Heartbeat:
        jobs = self._jobs
        return Heartbeat(
            steps=jobs.progress + self._paced.looks,
            running=jobs.running,
            waiting=jobs.waiting,
            memory_bytes=int(mx.get_active_memory()),
            max_batch=jobs.most_running,
            buffer_bytes=int(mx.get_cache_memory()),
            tokens_generated=jobs.generated,
        )
