"""The embedding and ranking *jobs* of a runner, from frame to rows to chunks to the answer.

A job is one `Embed` or `Rerank` frame, however many texts it brings. Helper threads turn its texts into rows, a
slice of one job at a time; the main thread computes one chunk per `step`, with the jobs taking turns, so that
between two chunks it can do other things. A fault in one job ends that job alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from omlx.engine.encode.chunked import Parts
from omlx.engine.encode.chunks import LONGEST_WHOLE, ChunkPick, EncodeBudget, PartBudget, choose
from omlx.engine.encode.embed import normalised
from omlx.engine.encode.rows import BadTokens, Encoder, EncodeRow, Text, TooLong
from omlx.engine.pacing import Presence, presence_of_jobs
from omlx.engine.panics import told
from omlx.messages.failures import INPUT_FAILED, running_failed
from omlx.messages.frames import MAX_FRAME, Embed, Embedded, Ranked, Rerank
from omlx.messages.request import PRIORITY_RANK, Failure, Priority
from omlx.runner.preparation import Preparation

log = logging.getLogger("omlx.runner")

TOO_LONG = "the input length exceeds the context length"
NOT_FINITE = "embedding contains NaN or Inf values"
"""Both in Ollama's words."""
_NO_EMBEDDINGS = "this model does not support embeddings"
_NO_RANKING = "this model does not support reranking"
_THREADS = "rows"
_SLICE_TEXTS = 256
_SLICE_CHARS = 200_000
_NUMBER_BYTES = 9
"""Of one number in an answer."""

Answer = Embedded | Ranked | Failure


class _EncodeJob:
    """`lengths` and `left` run in parallel: row lengths, longest first, and which rows they are."""

    def __init__(self, frame: Embed | Rerank) -> None:
        self.id = frame.id
        self.rank = PRIORITY_RANK[frame.priority]
        self.frame = frame
        self.texts = texts_of(frame)
        self.rows: list[EncodeRow] = []
        self.left: list[int] = []
        self.lengths: list[int] = []
        self.found: list[Any] = []
        self.failure: Failure | None = None
        self.alone = False
        """It was in a chunk that failed: now it has to show by itself whether it was to blame."""
        self.led_at = 0
        self.parts: Parts | None = None
        """The first of `left`, where it is being read in parts."""
        self.part_budget = PartBudget(0)

    def arrange(self) -> None:
        """All rows are there: sort what is to be done."""
        self.left = sorted(range(len(self.rows)), key=lambda index: -len(self.rows[index].tokens))
        self.lengths = [len(self.rows[index].tokens) for index in self.left]
        self.found = [None] * len(self.rows)

    def answer(self) -> Answer:
        tokens = sum(len(row.tokens) for row in self.rows)
        if isinstance(self.frame, Rerank):
            return Ranked(self.id, [float(scores[0]) for scores in self.found], tokens)
        if not self.found:
            return Embedded(self.id, [], 0)
        vectors = normalised(np.stack(self.found), self.frame.dimensions).astype(np.float32, copy=False)
        return Embedded(self.id, [vector.tobytes() for vector in vectors], tokens)


def texts_of(frame: Embed | Rerank) -> list[Text]:
    if isinstance(frame, Embed):
        return list(frame.inputs)
    return [(frame.query, document) for document in frame.documents]


def _size(text: Text) -> int:
    """How much there is to read: characters, or tokens."""
    return sum(map(len, text)) if isinstance(text, tuple) else len(text)


class EncodeJobs:
    """See the module text. `wake` makes the main thread look again; `token_s`: about what a token takes, in seconds."""

    def __init__(
        self,
        wake: Callable[[], None],
        *,
        embedder: Encoder | None,
        reranker: Encoder | None,
        token_s: float = 0.0005,
    ) -> None:
        self._encoders: dict[type, Encoder | None] = {Embed: embedder, Rerank: reranker}
        self._preparation = Preparation(self._prepare, failure=_failure, threads={_THREADS: 2}, wake=wake)
        self._pace = EncodeBudget(token_s)
        self._jobs: dict[int, _EncodeJob] = {}
        self._refused: list[Answer] = []
        self.held: frozenset[Priority] = frozenset()
        """Classes of requests that pause for now."""
        self._chunks = 0
        self.most_rows = 0

    @property
    def progress(self) -> int:
        """Grows with each piece of work of any job."""
        return self._chunks + self._preparation.progress

    @property
    def open(self) -> int:
        return len(self._preparation) + len(self._jobs)

    @property
    def running(self) -> int:
        return len(self._jobs)

    @property
    def waiting(self) -> int:
        """Jobs whose rows are not made yet."""
        return len(self._preparation)

    @property
    def has_work(self) -> bool:
        """`step` has something to do now."""
        return bool(self._jobs or self._refused) or self._preparation.complete > 0

    @property
    def presence(self) -> Presence:
        """Which classes of jobs run."""
        arriving = bool(self._refused) or self._preparation.complete > 0
        return presence_of_jobs((job.frame.priority for job in self._jobs.values()), arriving=arriving)

    @property
    def _taking_part(self) -> list[_EncodeJob]:
        return [job for job in self._jobs.values() if job.frame.priority not in self.held]

    def submit(self, frame: Embed | Rerank) -> None:
        """Take a job; its answer comes from `step`."""
        if self._encoders[type(frame)] is None:
            message = _NO_EMBEDDINGS if isinstance(frame, Embed) else _NO_RANKING
            self._refused.append(Failure(frame.id, "unsupported", message))
            return
        job = _EncodeJob(frame)
        self._preparation.submit(job.id, job, _THREADS)

    def cancel(self, number: int) -> None:
        """Forget a job; nothing is said about it any more."""
        self._preparation.cancel(number)
        self._jobs.pop(number, None)

    def close(self) -> None:
        self._preparation.close()

    def step(self, seconds: float) -> list[Answer]:
        """Compute one chunk that takes about `seconds`; returns the answers that are complete now."""
        answers, self._refused = self._refused, []
        answers += self._take_prepared()
        if self._taking_part:
            answers += self._compute(seconds)
        return answers

    # ------------------------------------------------------------ rows
    def _prepare(self, job: _EncodeJob) -> str:
        """Runs in a helper thread: one slice of the job's texts."""
        done, size = len(job.rows), 0
        stop = done
        while stop < len(job.texts) and stop - done < _SLICE_TEXTS and size < _SLICE_CHARS:
            size += _size(job.texts[stop])
            stop += 1
        encoder = self._encoders[type(job.frame)]
        truncate, limit = (job.frame.truncate, job.frame.num_ctx) if isinstance(job.frame, Embed) else (True, 0)
        if encoder is not None:
            job.rows += encoder.rows(job.texts[done:stop], truncate=truncate, limit=limit)
        return "" if stop == len(job.texts) else _THREADS

    def _take_prepared(self) -> list[Answer]:
        answers: list[Answer] = []
        for job, failure in self._preparation.take():
            if failure is not None:
                answers.append(failure)
                continue
            job.arrange()
            if job.left:
                self._jobs[job.id] = job
            else:
                answers.append(job.answer())
        return answers

    # ------------------------------------------------------------ chunks
    def _compute(self, seconds: float) -> list[Answer]:
        taking_part = self._taking_part
        leader = min(taking_part, key=lambda job: (job.rank, job.led_at))
        self._chunks += 1
        leader.led_at = self._chunks
        encoder = self._encoders[type(leader.frame)]
        budget = self._pace.budget(seconds)
        if encoder is not None and leader.parts is None and leader.lengths[0] > min(budget, LONGEST_WHOLE):
            leader.parts = encoder.begin(leader.rows[leader.left[0]])
            leader.part_budget = PartBudget(budget)
        if leader.parts is not None:
            return self._read_part(leader, leader.parts, seconds)
        jobs = [leader]
        if not leader.alone:
            others = (job for job in taking_part if job is not leader and not job.alone and job.parts is None)
            jobs += [job for job in others if type(job.frame) is type(leader.frame)]
        picks = choose([job.lengths for job in jobs], budget)
        chosen = [(jobs[pick.queue], pick) for pick in picks]
        rows = [job.rows[index] for job, pick in chosen for index in job.left[pick.start : pick.stop]]
        self.most_rows = max(self.most_rows, len(rows))
        begun = time.perf_counter()
        try:
            if encoder is None:
                raise ValueError(_NO_EMBEDDINGS)
            numbers = encoder.compute(rows)
        except Exception as error:
            return self._blame([job for job, _ in chosen], error)
        self._pace.learn(len(rows) * leader.lengths[0], time.perf_counter() - begun)
        return self._store(chosen, numbers)

    def _read_part(self, job: _EncodeJob, parts: Parts, seconds: float) -> list[Answer]:
        begun, before = time.perf_counter(), parts.left
        try:
            numbers = parts.read(job.part_budget.tokens(seconds))
        except Exception as error:
            return self._blame([job], error)
        took, read = time.perf_counter() - begun, before - parts.left
        job.part_budget.learn(read, took)
        if job.lengths[0] - parts.left <= LONGEST_WHOLE:
            self._pace.learn(read, took)  # it cost what a row of that length does
        if numbers is None:
            return []
        job.parts = None
        return self._store([(job, ChunkPick(0, 0, 1))], numbers)

    def _store(self, chosen: list[tuple[_EncodeJob, ChunkPick]], numbers: Any) -> list[Answer]:
        answers: list[Answer] = []
        finite = np.isfinite(numbers).all(axis=1)
        first = 0
        for job, pick in chosen:
            count = pick.stop - pick.start
            if not finite[first : first + count].all():
                job.failure = Failure(job.id, "internal", NOT_FINITE)
            elif isinstance(job.frame, Embed) and len(job.rows) * numbers.shape[1] * _NUMBER_BYTES > MAX_FRAME // 2:
                most = MAX_FRAME // 2 // (numbers.shape[1] * _NUMBER_BYTES)
                text = f"{len(job.rows)} inputs are too many for one request: this model takes {most} at once"
                job.failure = Failure(job.id, "invalid", text)
            for row, values in zip(job.left[pick.start : pick.stop], numbers[first : first + count], strict=True):
                job.found[row] = values
            del job.left[pick.start : pick.stop], job.lengths[pick.start : pick.stop]
            first += count
            if job.failure is not None or not job.left:
                del self._jobs[job.id]
                answers.append(job.failure or job.answer())
        return answers

    def _blame(self, jobs: list[_EncodeJob], error: Exception) -> list[Answer]:
        """A chunk failed: end its job, or have several show one by one which of them it was."""
        if len(jobs) > 1:
            log.warning("a chunk of %d jobs failed (%s); they are tried one by one", len(jobs), error)
            for job in jobs:
                job.alone = True
            return []
        (job,) = jobs
        del self._jobs[job.id]
        log.error("[%s] the request failed", job.frame.trace, exc_info=error)
        return [Failure(job.id, "internal", running_failed(error))]


def _failure(job: _EncodeJob, error: BaseException) -> Failure:
    match error:
        case TooLong():
            return Failure(job.id, "too_long", TOO_LONG)
        case BadTokens():
            return Failure(job.id, "invalid", str(error))
    log.error("[%s] the texts could not be read", job.frame.trace, exc_info=told(error))
    return Failure(job.id, "internal", INPUT_FAILED)
