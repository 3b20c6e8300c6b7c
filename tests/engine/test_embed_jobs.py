"""Jobs of one runner: each gets its own answer, none waits for another's end, and a bad one goes alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from omlx.engine.encode.rows import EncodeRow, Text, TooLong
from omlx.messages.failures import INPUT_FAILED, running_failed
from omlx.messages.frames import Embed, Embedded, Ranked, Rerank
from omlx.messages.request import Failure
from omlx.runner.encode_jobs import NOT_FINITE, Answer, EncodeJobs


class Letters:
    """An encoder that knows a text's length and first letter; some texts break it."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.read: list[int] = []

    def rows(self, texts: Sequence[Text], *, truncate: bool, limit: int = 0) -> list[EncodeRow]:
        joined = [text if isinstance(text, str) else "".join(text) for text in texts]
        if not truncate and any(len(text) > 100 for text in joined):
            raise TooLong
        if "unreadable" in joined:
            raise RuntimeError("what is this?")
        return [EncodeRow([ord(letter) for letter in text[:100]] or [0]) for text in joined]

    def compute(self, rows: Sequence[EncodeRow]) -> Any:
        self.batches.append(len(rows))
        texts = ["".join(map(chr, row.tokens)) for row in rows]
        if any(text == "explode" for text in texts):
            raise RuntimeError("out of memory")
        values = [[np.nan if text == "vanish" else 1.0, len(text), ord(text[0])] for text in texts]
        return np.array(values, dtype=np.float32)

    def begin(self, row: EncodeRow) -> Any:
        """Rows of late letters may be read in parts."""
        if min(row.tokens) < ord("w"):
            return None
        return InParts(self, row)


class InParts:
    """Reads as many at once as it is told."""

    def __init__(self, encoder: Letters, row: EncodeRow) -> None:
        self.left = len(row.tokens)
        self._encoder, self._row = encoder, row

    def read(self, count: int) -> Any:
        self._encoder.read.append(min(count, self.left))
        self.left -= self._encoder.read[-1]
        return None if self.left else self._encoder.compute([self._row])


class Bench:
    """Encode jobs and a main thread that steps when the test says so."""

    def __init__(self) -> None:
        self.encoder = Letters()
        self.woken = threading.Event()
        self.vectors = EncodeJobs(self.woken.set, embedder=self.encoder, reranker=self.encoder)

    def submit(self, *jobs: Embed | Rerank) -> None:
        """Take the jobs and wait until all their rows are made."""
        for job in jobs:
            self.vectors.submit(job)
        self.wait_for_rows(len(jobs))

    def wait_for_rows(self, jobs: int) -> None:
        deadline = time.monotonic() + 120
        while self.vectors._preparation.complete < jobs:
            assert self.woken.wait(deadline - time.monotonic())
            self.woken.clear()

    def finish(self, seconds: float = 0.2) -> dict[int, Answer]:
        answers: dict[int, Answer] = {}
        deadline = time.monotonic() + 120
        while self.vectors.has_work and time.monotonic() < deadline:
            for answer in self.vectors.step(seconds):
                assert answer.id not in answers
                answers[answer.id] = answer
        return answers


@pytest.fixture
def bench() -> Iterator[Bench]:
    found = Bench()
    yield found
    found.vectors.close()


def test_answers_come_back_in_the_order_of_the_inputs(bench: Bench) -> None:
    inputs = ["bb", "a" * 50, "", "cccc", "a" * 300]
    bench.submit(Embed(id=1, inputs=inputs), Rerank(id=2, query="q", documents=["xxx", "y"]), Embed(id=3, inputs=[]))
    answers = bench.finish()
    embedded, ranked, empty = (answers[number] for number in (1, 2, 3))
    assert isinstance(embedded, Embedded) and isinstance(ranked, Ranked) and isinstance(empty, Embedded)
    rows = [memoryview(vector).cast("f") for vector in embedded.vectors]
    ratios = [row[1] / row[0] for row in rows]
    assert ratios == pytest.approx([2, 50, 1, 4, 100], rel=1e-5)
    assert embedded.prompt_tokens == 2 + 50 + 1 + 4 + 100
    assert (ranked.scores, ranked.prompt_tokens) == ([1.0, 1.0], 6)
    assert (empty.vectors, empty.prompt_tokens) == ([], 0)
    assert bench.vectors.open == 0


def test_a_short_job_does_not_wait_for_the_end_of_a_long_one(bench: Bench) -> None:
    bench.submit(Embed(id=1, inputs=["a" * 90] * 5000))
    assert bench.vectors.step(0.001) == []
    bench.submit(*(Embed(id=number, inputs=["hi"]) for number in (2, 3, 4)))
    # Three jobs, and the long one's own turns between them.
    ids = [answer.id for _ in range(3) for answer in bench.vectors.step(0.001)]
    assert sorted(ids) == [2, 3, 4]
    assert bench.vectors.open == 1
    long = bench.finish()[1]
    assert isinstance(long, Embedded) and len(long.vectors) == 5000


def test_jobs_of_equal_size_end_together(bench: Bench) -> None:
    bench.submit(*(Embed(id=number, inputs=["a" * 90 + str(number)] * 400) for number in (1, 2, 3)))
    ends: list[int] = []
    while bench.vectors.has_work:
        ends += [bench.vectors.progress for _ in bench.vectors.step(0.001)]
    assert ends[0] > 0.7 * ends[-1]


def test_a_long_text_is_read_in_parts_and_others_take_turns_with_it(bench: Bench) -> None:
    bench.submit(Embed(id=1, inputs=["x" * 90]), Embed(id=2, inputs=["y" * 3]), Embed(id=3, inputs=["z" * 95, "z" * 2]))
    assert bench.vectors.step(0.0) == []  # 32 tokens of the first
    answers: dict[int, Any] = {}
    order: list[int] = []
    while bench.vectors.has_work:
        for answer in bench.vectors.step(0.0):
            answers[answer.id] = answer
            order.append(answer.id)
    assert order[0] == 2
    assert sorted(bench.encoder.read) == [26, 31, 32, 32, 32, 32]
    assert [len(answers[at].vectors) for at in (1, 2, 3)] == [1, 1, 2]
    assert answers[3].prompt_tokens == 97


def test_a_cancelled_text_is_not_read_on(bench: Bench) -> None:
    bench.submit(Embed(id=1, inputs=["x" * 90]))
    bench.vectors.step(0.0)
    bench.vectors.cancel(1)
    assert not bench.vectors.has_work
    assert bench.encoder.read == [32]


def test_a_text_that_fails_in_a_part_fails_alone(bench: Bench) -> None:
    bench.encoder.compute = lambda rows: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    bench.submit(Embed(id=1, inputs=["x" * 90]))
    answers = bench.finish(0.0)
    assert isinstance(answers[1], Failure)


def test_interactive_jobs_lead_and_background_ones_wait(bench: Bench) -> None:
    bench.submit(
        Embed(id=1, inputs=["a" * 90] * 300, priority="background"),
        Embed(id=2, inputs=["b" * 9] * 300),
        Embed(id=3, inputs=["c" * 30] * 300, priority="interactive"),
    )
    assert list(bench.finish(0.001)) == [3, 2, 1]


def test_many_small_jobs_share_a_chunk(bench: Bench) -> None:
    bench.submit(*(Embed(id=number, inputs=["hello"]) for number in range(40)))
    assert len(bench.finish()) == 40
    assert len(bench.encoder.batches) < 10


def test_a_cancelled_job_is_forgotten(bench: Bench) -> None:
    bench.submit(Embed(id=1, inputs=["a" * 90] * 1000), Embed(id=2, inputs=["b"]))
    bench.vectors.step(0.001)
    bench.vectors.cancel(1)
    bench.vectors.cancel(77)
    assert set(bench.finish()) <= {2}
    assert bench.vectors.open == 0


def test_a_job_cancelled_while_its_texts_are_read_says_nothing(bench: Bench) -> None:
    bench.vectors.submit(Embed(id=1, inputs=["a" * 90] * 20_000))
    bench.vectors.cancel(1)
    bench.wait_for_rows(1)
    assert bench.finish() == {}


def test_what_cannot_be_embedded_fails_alone_with_the_reason(bench: Bench) -> None:
    bench.submit(
        Embed(id=1, inputs=["fine"]),
        Embed(id=2, inputs=["long" * 100], truncate=False),
        Embed(id=3, inputs=["good", "vanish"]),
        Embed(id=4, inputs=["unreadable"]),
        Embed(id=5, inputs=["explode"]),
        Embed(id=6, inputs=["alright"]),
    )
    answers = bench.finish()
    assert isinstance(answers[1], Embedded) and isinstance(answers[6], Embedded)
    failures = {number: answer for number, answer in answers.items() if isinstance(answer, Failure)}
    assert sorted(failures) == [2, 3, 4, 5]
    assert (failures[2].kind, failures[2].message) == ("too_long", "the input length exceeds the context length")
    assert failures[3].message == NOT_FINITE == "embedding contains NaN or Inf values"
    assert failures[4].message == INPUT_FAILED, "what the tokenizer says goes to the log"
    assert failures[5].message == running_failed(MemoryError())
    assert bench.vectors.open == 0


def test_a_model_without_the_ability_says_so() -> None:
    vectors = EncodeJobs(lambda: None, embedder=None, reranker=None)
    vectors.submit(Embed(id=1, inputs=["a"]))
    vectors.submit(Rerank(id=2, query="q", documents=["d"]))
    first, second = vectors.step(0.1)
    assert first == Failure(1, "unsupported", "this model does not support embeddings")
    assert second == Failure(2, "unsupported", "this model does not support reranking")
    assert not vectors.has_work
    vectors.close()
