"""The preparation of requests: what helper threads do for a request before the main thread gets it.

Prompts are rendered, texts are tokenized, audio files are decoded. A fault there ends that request alone; one that was
cancelled meanwhile is dropped.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from omlx.engine.panics import ends_only_its_request
from omlx.messages.request import Failure

Job = TypeVar("Job")


class Unwanted(Exception):
    """The request was cancelled while it was prepared."""


class Preparation(Generic[Job]):
    """The jobs of one kind that are being prepared, by the ids of their requests.

    `prepare` runs in a helper thread and returns the name of the threads that go on with the job, at the end of their
    queue; "" if it is complete. `failure` makes an error into the answer. `drop` gets jobs that were cancelled before
    they were taken. `threads`: how many, by name. `wake` makes the main thread call `take`.
    """

    def __init__(
        self,
        prepare: Callable[[Job], str],
        *,
        failure: Callable[[Job, BaseException], Failure],
        threads: Mapping[str, int],
        wake: Callable[[], None],
        drop: Callable[[Job], None] = lambda job: None,
    ) -> None:
        self._prepare = prepare
        self._failure = failure
        self._drop = drop
        self._wake = wake
        self._pools = {name: ThreadPoolExecutor(count, thread_name_prefix=name) for name, count in threads.items()}
        self._since: dict[int, float] = {}
        """When the jobs were submitted, by `time.monotonic`."""
        self._complete: queue.SimpleQueue[tuple[int, Job, Failure | None]] = queue.SimpleQueue()
        self.progress = 0
        """Grows by about one with each piece of work: progress apart from the steps of the main thread."""

    def __len__(self) -> int:
        """Jobs that were not taken yet."""
        return len(self._since)

    @property
    def complete(self) -> int:
        """How many jobs `take` would return now, at most."""
        return self._complete.qsize()

    @property
    def youngest(self) -> float | None:
        """When the last job that is still being prepared was submitted; None: there is none."""
        return max(self._since.values()) if len(self._since) > self._complete.qsize() else None

    def submit(self, number: int, job: Job, threads: str) -> None:
        """Prepare a job in the threads of this name."""
        self._since[number] = time.monotonic()
        self._pools[threads].submit(self._run, number, job)

    def cancel(self, number: int) -> None:
        """Drop a job; nothing is said about it any more."""
        self._since.pop(number, None)

    def check(self, number: int) -> None:
        """Count progress within `prepare`. Raises Unwanted where the job was cancelled."""
        self.progress += 1
        if number not in self._since:
            raise Unwanted

    def take(self) -> list[tuple[Job, Failure | None]]:
        """The jobs that are complete now, and what was wrong with them."""
        jobs: list[tuple[Job, Failure | None]] = []
        while True:
            try:
                number, job, failure = self._complete.get_nowait()
            except queue.Empty:
                return jobs
            if self._since.pop(number, None) is None:
                self._drop(job)
            else:
                jobs.append((job, failure))

    def close(self) -> None:
        """Cancel all."""
        self._since.clear()
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, number: int, job: Job) -> None:
        """In a helper thread."""
        failure: Failure | None = None
        following = ""
        try:
            following = self._prepare(job)
        except Unwanted:
            return
        except BaseException as error:  # a template, a tokenizer or a decoder may raise anything
            if not ends_only_its_request(error):
                raise
            failure = self._failure(job, error)
        self.progress += 1
        if following and number in self._since:
            self._pools[following].submit(self._run, number, job)
        else:
            self._complete.put((number, job, failure))
        # After each part too: the main thread reports the progress to the server.
        self._wake()
