"""The transcription *jobs* of a runner, from the frame with a file to segments of text.

Helper threads decode files in separate processes. Each call of `step` runs one step of one job on the main thread, and
jobs alternate, so a short file does not wait for a long one. A failure ends only its own job.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np

from omlx.engine.panics import told
from omlx.engine.speech import audio_decoder
from omlx.engine.speech.audio_file import AudioError
from omlx.engine.speech.network import Network, language_code
from omlx.engine.speech.transcription import SpeechOptions, Step, Transcription
from omlx.messages.failures import running_failed
from omlx.messages.frames import PrefillProgress
from omlx.messages.request import PRIORITY_RANK, Failure
from omlx.messages.speech import Segments, Transcribe, Transcribed
from omlx.runner.preparation import Preparation

if TYPE_CHECKING:
    from numpy.typing import NDArray

log = logging.getLogger("omlx.runner")

_THREADS = "audio"
_HELD_BYTES = 512 << 20
"""Decoded audio in memory, above which decoding of the next file waits."""

Answer = Segments | PrefillProgress | Transcribed | Failure


class _SpeechJob:
    def __init__(self, request: Transcribe) -> None:
        self.id = request.id
        self.rank = PRIORITY_RANK[request.priority]
        self.request = request
        self.arrived = time.monotonic_ns()
        self.samples: NDArray[np.float32] = np.zeros(0, np.float32)
        self.work: Transcription | None = None
        self.steps: Iterator[Step] = iter(())
        self.begun = 0
        self.last_step = 0
        """The number of its last step, over all jobs."""
        self.reported = 0
        """Frames in the last progress event."""


class TranscribeJobs:
    """The jobs of one runner. `wake` makes the main thread call `step`."""

    def __init__(self, wake: Callable[[], None], network: Network) -> None:
        self._wake = wake
        self._network = network
        self._preparation = Preparation(
            self._prepare, failure=_failure, threads={_THREADS: 2}, wake=wake, drop=self._drop
        )
        self._jobs: dict[int, _SpeechJob] = {}
        self._refused: list[Answer] = []
        self._held = 0
        self._memory = threading.Condition()
        self._steps = 0
        self.most_running = 0
        self.generated = 0
        """Tokens generated since the model was loaded."""

    @property
    def progress(self) -> int:
        """Increases with every step and decoded chunk; a constant value means a stall."""
        return self._steps + self._preparation.progress

    @property
    def open(self) -> int:
        return len(self._preparation) + len(self._jobs)

    @property
    def running(self) -> int:
        return len(self._jobs)

    @property
    def waiting(self) -> int:
        """Jobs whose files are not decoded yet."""
        return len(self._preparation)

    @property
    def has_work(self) -> bool:
        """Whether `step` has work now."""
        return bool(self._jobs or self._refused) or self._preparation.has_complete

    def submit(self, request: Transcribe) -> None:
        """Add a job; `step` returns its answers."""
        code = language_code(request.language)
        if code and code not in self._network.languages:
            message = f"this model does not support the language {request.language[:50]!r}"
            self._refused.append(Failure(request.id, "invalid", message))
            return
        request.language = code
        job = _SpeechJob(request)
        self._preparation.submit(job.id, job, _THREADS)

    def cancel(self, number: int) -> None:
        """Drop a job without an answer."""
        self._preparation.cancel(number)
        job = self._jobs.pop(number, None)
        if job is not None:
            self._drop(job)

    def close(self) -> None:
        self._preparation.close()
        with self._memory:
            self._memory.notify_all()

    def step(self) -> list[Answer]:
        """Run one step of the next job; returns the answers that are ready."""
        answers, self._refused = self._refused, []
        answers += self._take_prepared()
        if self._jobs:
            answers += self._advance(min(self._jobs.values(), key=lambda job: (job.rank, job.last_step)))
        return answers

    # ------------------------------------------------------------ files
    def _prepare(self, job: _SpeechJob) -> bool:
        """Runs in a helper thread."""
        with self._memory:
            while self._held > _HELD_BYTES:
                self._check(job)
                self._memory.wait(0.5)
        job.samples = audio_decoder.decode(job.request.audio, lambda: self._check(job))
        job.request.audio = b""
        with self._memory:
            self._held += job.samples.nbytes
        return True

    def _check(self, job: _SpeechJob) -> None:
        """Count progress while a file is decoded. Raises Unwanted."""
        self._wake()
        self._preparation.check(job.id)

    def _take_prepared(self) -> list[Answer]:
        answers: list[Answer] = []
        for job, failure in self._preparation.take():
            if failure is not None:
                answers.append(failure)
            else:
                self._begin(job)
        return answers

    def _begin(self, job: _SpeechJob) -> None:
        request = job.request
        job.begun = time.monotonic_ns()
        job.last_step = self._steps
        job.work = Transcription(
            self._network,
            job.samples,
            SpeechOptions(request.task, request.language, request.prompt, request.temperature, request.words),
        )
        job.steps = job.work.steps()
        self._jobs[job.id] = job
        self.most_running = max(self.most_running, len(self._jobs))

    def _drop(self, job: _SpeechJob) -> None:
        with self._memory:
            self._held -= job.samples.nbytes
            self._memory.notify_all()
        job.samples, job.work, job.steps = np.zeros(0, np.float32), None, iter(())

    # ------------------------------------------------------------ steps
    def _advance(self, job: _SpeechJob) -> list[Answer]:
        self._steps += 1
        job.last_step = self._steps
        assert job.work is not None
        before = job.work.generated
        try:
            step = next(job.steps, None)
        except Exception as error:
            log.exception("[%s] a transcription failed", job.request.trace)
            return self._end(job, Failure(job.id, "internal", running_failed(error)))
        self.generated += job.work.generated - before
        if step is None:
            return self._end(job, self._result(job, job.work))
        answers: list[Answer] = []
        if step.text or step.segments:
            answers.append(Segments(id=job.id, text=step.text, items=list(step.segments)))
        if step.done > job.reported:
            job.reported = step.done
            answers.append(PrefillProgress(job.id, step.done, max(job.work.frames, 1)))
        return answers

    def _result(self, job: _SpeechJob, work: Transcription) -> Transcribed:
        return Transcribed(
            id=job.id,
            text=work.text,
            language=work.language,
            duration=work.duration,
            completion_tokens=work.generated,
            generation_ns=time.monotonic_ns() - job.begun,
            queue_ns=job.begun - job.arrived,
        )

    def _end(self, job: _SpeechJob, answer: Answer) -> list[Answer]:
        del self._jobs[job.id]
        self._drop(job)
        if not self._jobs:
            mx.clear_cache()
        return [answer]


def _failure(job: _SpeechJob, error: BaseException) -> Failure:
    if isinstance(error, AudioError):
        return Failure(job.id, "invalid", str(error))
    log.error("[%s] an audio file could not be decoded", job.request.trace, exc_info=told(error))
    return Failure(job.id, "internal", "the audio file could not be decoded: see the server's log")
