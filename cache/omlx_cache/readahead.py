"""Reading ahead: records on their way from disk into memory, before anyone waits for them.

Owner of the *reader* threads and of what they have read and nobody has taken yet. Bounded: no more than `max_bytes`
are read ahead, and what is not taken within a minute is let go. Readers see host bytes only; all methods belong to
the thread that owns MLX.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from omlx_cache.files import RecordFiles
from omlx_cache.record_file import HostRecord
from omlx_cache.records import RecordName

READERS = 4
MAX_BYTES = 1 << 30
_STALE_S = 60.0


class _Started(NamedTuple):
    future: Future[HostRecord]
    nbytes: int
    since: float


class PendingRead:
    """What was started for one prompt; `done` once nothing of it is still on its way."""

    def __init__(self, futures: Sequence[Future[HostRecord]]) -> None:
        self._futures = futures

    @property
    def done(self) -> bool:
        return all(future.done() for future in self._futures)


class ReadAhead:
    """Reads from `files` in threads of its own."""

    def __init__(self, files: RecordFiles, max_bytes: int = MAX_BYTES) -> None:
        self._files = files
        self._max_bytes = max_bytes
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="omlx-cache-read")
        self._started: dict[RecordName, _Started] = {}
        self._nbytes = 0
        self._speed = _Speed()

    def start(self, wanted: Iterable[tuple[RecordName, int]]) -> PendingRead:
        """Begin to read these (records and their sizes in bytes), in order, as far as the budget goes."""
        futures = []
        for name, nbytes in wanted:
            started = self._started.get(name)
            if started is None:
                if self._nbytes + nbytes > self._max_bytes:
                    break
                started = self._begin(name, nbytes)
            futures.append(started.future)
        return PendingRead(futures)

    def __len__(self) -> int:
        """Records that were started and not taken."""
        return len(self._started)

    def take(self, names: Sequence[RecordName]) -> list[Future[HostRecord]]:
        """These records, one future each; what was not started is started now."""
        taken = [self._started.get(name) or self._begin(name, 0) for name in names]
        for name in names:
            self._forget(name)
        return [started.future for started in taken]

    def take_speed(self) -> tuple[float, int]:
        """(seconds, bytes) of reading since the last call; the seconds during which at least one reader was busy."""
        return self._speed.take()

    def drop_stale(self) -> None:
        """Let go of what was read ahead and not taken in time."""
        now = time.monotonic()
        while self._started:
            name, started = next(iter(self._started.items()))
            if now - started.since < _STALE_S:
                return
            started.future.cancel()
            self._forget(name)

    def drop(self) -> None:
        """Let go of all that was read ahead."""
        for started in self._started.values():
            started.future.cancel()
        self._started.clear()
        self._nbytes = 0

    def close(self) -> None:
        self.drop()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _begin(self, name: RecordName, nbytes: int) -> _Started:
        started = _Started(self._threads.submit(self._read, name), nbytes, time.monotonic())
        self._started[name] = started
        self._nbytes += nbytes
        return started

    def _forget(self, name: RecordName) -> None:
        started = self._started.pop(name, None)
        if started is not None:
            self._nbytes -= started.nbytes

    def _read(self, name: RecordName) -> HostRecord:
        with self._speed as speed:
            record = self._files.read(name)
            speed.count(sum(array.data.nbytes for array in record.arrays))
            return record


class _Speed:
    """Measures readers that work side by side: time counts once, however many are busy. Used from all of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy = 0
        self._since = 0.0
        self._seconds = 0.0
        self._nbytes = 0

    def __enter__(self) -> _Speed:
        with self._lock:
            if not self._busy:
                self._since = time.perf_counter()
            self._busy += 1
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._busy -= 1
            if not self._busy:
                self._seconds += time.perf_counter() - self._since

    def count(self, nbytes: int) -> None:
        with self._lock:
            self._nbytes += nbytes

    def take(self) -> tuple[float, int]:
        with self._lock:
            if self._busy:
                return 0.0, 0
            speed = (self._seconds, self._nbytes)
            self._seconds, self._nbytes = 0.0, 0
            return speed
