"""The transcription *jobs* of a runner, from the frame with a file to segments of text.

Helper threads decode files in separate processes, from two *queues*: every file is tried in the short one first, and
goes to the long one if it takes long or is long. So a short file does not wait for the long files of others. Each call
of `step` runs one step of one job on the main thread, and jobs alternate. A failure ends only its own job.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

import mlx.core as mx
import numpy as np

from omlx.engine.pacing import Presence, presence_of_jobs
from omlx.engine.panics import told
from omlx.engine.speech import audio_decoder
from omlx.engine.speech.audio_file import AudioError, AudioLimitError
from omlx.engine.speech.network import Network, language_code
from omlx.engine.speech.transcription import SpeechOptions, Step, Transcription
from omlx.messages.failures import running_failed
from omlx.messages.frames import PrefillProgress
from omlx.messages.request import PRIORITY_RANK, Failure, Priority
from omlx.messages.speech import Segments, Transcribe, Transcribed
from omlx.runner.preparation import Preparation

if TYPE_CHECKING:
    from numpy.typing import NDArray

log = logging.getLogger("omlx.runner")

_SHORT: Final = audio_decoder.DecodeLimits(cpu_seconds=2.0, audio_seconds=600)
_SHORT_BYTES: Final = 32_000_000
"""A larger file goes to the long queue at once."""
_SHORT_HELD_BYTES: Final = 256 << 20
_LONG_HELD_BYTES: Final = 1 << 30
"""More than one file of the greatest length."""
_HELPERS: Final = 2
"""Threads of a queue."""

Answer = Segments | PrefillProgress | Transcribed | Failure


class _AudioQueue:
    """Files that are decoded within `limits` (None: the largest). The next one waits while more than `held_bytes` of
    decoded audio are in memory."""

    def __init__(self, name: str, limits: audio_decoder.DecodeLimits | None, held_bytes: int) -> None:
        self.name = name
        self.limits = limits
        self._held_bytes = held_bytes
        self._held = 0
        self._memory = threading.Condition()

    def wait(self, check: Callable[[], None]) -> None:
        """Until there is memory for one more file. `check` may raise to give up."""
        with self._memory:
            while self._held > self._held_bytes:
                check()
                self._memory.wait(0.5)

    def hold(self, size: int) -> None:
        """Count decoded bytes; a negative number when they are dropped."""
        with self._memory:
            self._held += size
            self._memory.notify_all()


class _SpeechJob:
    def __init__(self, request: Transcribe, queue: _AudioQueue) -> None:
        self.id = request.id
        self.rank = PRIORITY_RANK[request.priority]
        self.request = request
        self.queue = queue
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
        self._short = _AudioQueue("short-audio", _SHORT, _SHORT_HELD_BYTES)
        self._long = _AudioQueue("long-audio", None, _LONG_HELD_BYTES)
        threads = {queue.name: _HELPERS for queue in (self._short, self._long)}
        self._preparation = Preparation(self._prepare, failure=_failure, threads=threads, wake=wake, drop=self._drop)
        self.held: frozenset[Priority] = frozenset()
        """As in EncodeJobs."""
        self._jobs: dict[int, _SpeechJob] = {}
        self._refused: list[Answer] = []
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
        return bool(self._jobs or self._refused) or self._preparation.complete > 0

    @property
    def presence(self) -> Presence:
        """As in EncodeJobs."""
        arriving = bool(self._refused) or self._preparation.complete > 0
        return presence_of_jobs((job.request.priority for job in self._jobs.values()), arriving=arriving)

    def submit(self, request: Transcribe) -> None:
        """Add a job; `step` returns its answers."""
        code = language_code(request.language)
        if code and code not in self._network.languages:
            message = f"this model does not support the language {request.language[:50]!r}"
            self._refused.append(Failure(request.id, "invalid", message))
            return
        request.language = code
        job = _SpeechJob(request, self._short if len(request.audio) <= _SHORT_BYTES else self._long)
        self._preparation.submit(job.id, job, job.queue.name)

    def cancel(self, number: int) -> None:
        """Drop a job without an answer."""
        self._preparation.cancel(number)
        job = self._jobs.pop(number, None)
        if job is not None:
            self._drop(job)

    def close(self) -> None:
        self._preparation.close()
        for queue in (self._short, self._long):
            queue.hold(0)

    def step(self) -> list[Answer]:
        """Run one step of the next job; returns the answers that are ready."""
        answers, self._refused = self._refused, []
        answers += self._take_prepared()
        taking_part = [job for job in self._jobs.values() if job.request.priority not in self.held]
        if taking_part:
            answers += self._advance(min(taking_part, key=lambda job: (job.rank, job.last_step)))
        return answers

    # ------------------------------------------------------------ files
    def _prepare(self, job: _SpeechJob) -> str:
        """Runs in a helper thread."""
        queue, check = job.queue, partial(self._check, job)
        queue.wait(check)
        try:
            job.samples = audio_decoder.decode(job.request.audio, check, queue.limits)
        except AudioLimitError:
            if queue is self._long:
                raise
            job.queue = self._long
            return job.queue.name
        job.request.audio = b""
        queue.hold(job.samples.nbytes)
        return ""

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
        job.queue.hold(-job.samples.nbytes)
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
