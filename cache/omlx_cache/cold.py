"""The cold tier: records on SSD, shared by all models and processes that use the folder.

Owner of the index and the files. Three kinds of threads: the thread that owns MLX asks and hands over host bytes;
one *writer* thread changes files and index; a few *reader* threads bring files into memory (see `readahead`). Writer
and readers see host bytes only. Handing over never waits: a full queue drops the record and counts it.

Trouble with the disk is never trouble for a request: what cannot be read is a miss, what cannot be written is not
kept, and a folder that cannot be used at all leaves the tier switched off with `problem` saying why.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from omlx_cache.database import IndexNewerError, IndexUnusableError
from omlx_cache.files import size_on_disk
from omlx_cache.index import Index, Reserved
from omlx_cache.readahead import PendingRead, ReadAhead
from omlx_cache.record_file import DamagedError, HostRecord, encode
from omlx_cache.records import IndexEntry, Kind, RecordName, StoredSize
from omlx_cache.recovery import open_folder, remove_index
from omlx_cache.stats import ColdCounts
from omlx_cache.writequeue import BATCH_BYTES, Do, Write, WriteBatch, WriteQueue

log = logging.getLogger(__name__)
_T = TypeVar("_T")
_MOST_ANSWERS = 1000

_PAUSE_S = 30.0
"""After a failed write, how long nothing is tried again."""


class ColdTier:
    """The tier in `folder`, for the model with this `namespace`; `model` is its name for people, `fingerprint` what
    other names of the same weights have in common with it.

    `max_bytes` caps the whole folder, index included. `hourly_bytes` 0: no write budget. `queue_bytes` bounds what
    waits to be written.
    """

    def __init__(
        self,
        folder: Path,
        namespace: bytes,
        *,
        model: str,
        fingerprint: str = "",
        max_bytes: int,
        hourly_bytes: int = 0,
        queue_bytes: int = 256 << 20,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.folder = folder
        self.counts = ColdCounts()
        self.problem = ""
        """Why the tier is off; empty while it works."""
        self._namespace = namespace
        self._max_bytes = max_bytes
        self._hourly_bytes = hourly_bytes
        self._queue = WriteQueue(queue_bytes, min(BATCH_BYTES, max_bytes // 64))
        self._clock = clock
        self._bad: set[RecordName] = set()
        self._answers: dict[tuple[Any, ...], Any] = {}
        self._answered_for: tuple[int, int] | None = None
        self._queued: dict[RecordName, int] = {}
        self._done: deque[tuple[RecordName, bool, list[tuple[HostRecord, Any]]]] = deque()
        self._paused_until = 0.0
        self._writer: threading.Thread | None = None
        self._ahead: ReadAhead | None = None
        try:
            self._files, self._index = open_folder(folder, max_bytes, self.counts, clock)
        except (OSError, sqlite3.Error, IndexUnusableError) as error:
            self.problem = f"the cache folder {folder} cannot be used: {error}"
            log.warning("%s; prefixes are kept in memory only", self.problem)
            return
        self._ahead = ReadAhead(self._files)
        self._writer = threading.Thread(
            target=self._write_loop, args=(model, fingerprint), name="omlx-cache-write", daemon=True
        )
        self._writer.start()

    # ------------------------------------------------------------------ asking (the thread that owns MLX)
    def find(self, keys: Sequence[bytes]) -> dict[RecordName, StoredSize]:
        """The records under these keys that can be read."""
        nothing: dict[RecordName, StoredSize] = {}
        sizes = self._answer(("find", *keys), lambda index: index.find(keys), nothing)
        return {name: stored for name, stored in sizes.items() if name not in self._bad}

    def neighbours(self, parent: bytes, kind: Kind, packed: bytes) -> list[IndexEntry]:
        """The pieces behind `parent` next to these tokens in order: no others share longer prefixes with them."""
        nothing: list[IndexEntry] = []
        entries = self._answer((parent, kind, packed), lambda index: index.neighbours(parent, kind, packed), nothing)
        return [entry for entry in entries if RecordName(entry.piece.key, kind) not in self._bad]

    def sizes(self, parent: bytes, kind: Kind) -> set[int]:
        """The lengths in tokens of the pieces behind `parent`."""
        return self._ask(lambda index: index.sizes(parent, kind), set())

    def ask(self, question: Callable[[Index], _T], otherwise: _T) -> _T:
        """Anything else the index knows."""
        return self._ask(question, otherwise)

    def holds(self, name: RecordName, skip: int = 0) -> bool:
        """Whether the record is there or on its way, with no more tokens missing than `skip`."""
        if self._queued.get(name, skip + 1) <= skip:
            return True
        return name not in self._bad and self._ask(lambda index: index.has(name, skip), False)

    def _answer(self, key: tuple[Any, ...], question: Callable[[Index], _T], otherwise: _T) -> _T:
        """What the index answers; what it has answered before as long as it has not changed. Each prompt asks the same
        twice: when it starts to wait, and when its turn comes."""
        version = self._ask(lambda index: index.version(), None)
        if version != self._answered_for or len(self._answers) >= _MOST_ANSWERS:
            self._answers, self._answered_for = {}, version
        if key not in self._answers:
            self._answers[key] = self._ask(question, otherwise)
        answer: _T = self._answers[key]
        return answer

    def _ask(self, question: Callable[[Index], _T], otherwise: _T) -> _T:
        if self.problem:
            return otherwise
        try:
            return question(self._index)
        except sqlite3.Error as error:
            self._switch_off(error)
            return otherwise

    def _switch_off(self, error: Exception) -> None:
        self.problem = f"the index of the cache folder {self.folder} failed: {error}"
        log.warning("%s; prefixes are kept in memory only from now on", self.problem)
        if not isinstance(error, sqlite3.OperationalError | IndexNewerError):
            with contextlib.suppress(OSError):  # It is damaged: the next start makes it anew from the files.
                remove_index(self.folder)

    # ------------------------------------------------------------------ reading
    def read_ahead(self, wanted: Iterable[tuple[RecordName, int]]) -> PendingRead:
        """Start reading these (records and their sizes in bytes), for a `read` soon to come."""
        if self._ahead is None or self.problem:
            return PendingRead(())
        return self._ahead.start(wanted)

    def read(self, names: Sequence[RecordName]) -> dict[RecordName, HostRecord]:
        """Those of these records that are intact. The others are counted, and not offered again."""
        records: dict[RecordName, HostRecord] = {}
        if self._ahead is None or self.problem:
            return records
        for name, future in zip(names, self._ahead.take(names), strict=True):
            try:
                records[name] = future.result()
                self.counts.read += 1
                self.counts.read_bytes += sum(array.data.nbytes for array in records[name].arrays)
            except (OSError, DamagedError, CancelledError, MemoryError) as error:
                self.reject(name, error)
        return records

    def take_speed(self) -> tuple[float, int]:
        """(seconds, bytes) that reading from disk took since the last call, read ahead or not."""
        return self._ahead.take_speed() if self._ahead is not None else (0.0, 0)

    def tidy(self) -> None:
        """Let go of what was read ahead for requests that never came."""
        if self._ahead is not None:
            self._ahead.drop_stale()

    def drop_ahead(self) -> None:
        """Forget what was read ahead and not asked for."""
        if self._ahead is not None:
            self._ahead.drop()

    def reject(self, name: RecordName, error: Exception) -> None:
        """This record is of no use: do not offer it again, remove it."""
        self._bad.add(name)  # Until the writer has removed it.
        if isinstance(error, FileNotFoundError):
            self.counts.missing += 1
            self._put(Do(lambda index: self._remove_missing(index, name)))
        else:
            self.counts.damaged += 1
            log.warning("removing the cached record %s: %s", self._files.path(name).name, error)
            self._put(Do(lambda index: self._remove(index, [name])))

    # ------------------------------------------------------------------ writing
    def write(self, host: HostRecord, used: float, keep: Any) -> bool:
        """Hand over a record, last used at `used`; False when it is dropped (the queue is full, writing is paused).

        `keep` is held until the bytes are no longer needed, and let go in the thread that calls `done`.
        """
        name = RecordName(host.identity.piece.key, host.identity.kind)
        nbytes = sum(array.data.nbytes for array in host.arrays)
        if self.problem or self._writer is None or self._clock() < self._paused_until:
            return False
        if not self._queue.reserve(nbytes):
            self.counts.dropped_queue_full += 1
            return False
        self._queued[name] = host.identity.skip
        self._queue.put(Write(name, used, nbytes, [(host, keep)]))
        return True

    def room(self) -> int:
        """Bytes the write queue can take now."""
        if self.problem or self._writer is None or self._clock() < self._paused_until:
            return 0
        return self._queue.room()

    def wait_for_room(self, nbytes: int, timeout: float) -> bool:
        """Wait until the queue can take this many bytes; False when it cannot within `timeout` seconds."""
        return self._clock() >= self._paused_until and self._queue.wait_for_room(nbytes, timeout)

    def snapshot(self) -> ColdCounts:
        """The counts as they are now."""
        return msgspec.structs.replace(self.counts)

    def done(self) -> list[tuple[RecordName, bool]]:
        """Records handed over earlier that are finished now: whether the tier has them. Lets go of their owners."""
        finished = []
        while self._done:
            name, kept, payload = self._done.popleft()
            payload.clear()
            self._queued.pop(name, None)
            finished.append((name, kept))
        return finished

    def touch(self, names: Sequence[RecordName]) -> None:
        """Mark as used now."""
        if self._writer is not None:
            self._queue.touch(names, self._clock())

    def remove(self, names: Sequence[RecordName]) -> None:
        """Delete records."""
        self._put(Do(lambda index: self._remove(index, names)))

    def change(self, action: Callable[[Index], Any]) -> None:
        """Any other change to the index, by the writer in turn."""
        self._put(Do(action))

    def flush(self, timeout: float) -> bool:
        """Wait until all that was handed over is done; False when that takes longer than `timeout` seconds."""
        if self._writer is None:
            return True
        passed = threading.Event()
        self._put(Do(lambda _: passed.set()))
        return passed.wait(timeout)

    def close(self, timeout: float) -> bool:
        """Flush within `timeout` seconds and end the threads; what is not written by then is dropped."""
        flushed = self.flush(timeout)
        if self._ahead is not None:
            self._ahead.close()
        if not flushed:
            self._queue.clear()
        self._queue.put(None)
        if self._writer is not None:
            self._writer.join(timeout + 1)
            self._index.close()
            self._writer = None
        self.problem = self.problem or "it is closed"
        return flushed

    def _put(self, item: Do) -> None:
        if self._writer is not None:
            self._queue.put(item)

    # ------------------------------------------------------------------ the writer thread
    def _write_loop(self, model: str, fingerprint: str) -> None:
        try:
            index = Index(self.folder, self._max_bytes)
            index.name_model(self._namespace, model, fingerprint)
        except (sqlite3.Error, IndexUnusableError) as error:
            self._switch_off(error)
            index = None
        while (work := self._queue.take()) is not None:
            try:
                if isinstance(work, WriteBatch):
                    self._write_batch(index, work)
                elif index is not None:
                    work.action(index)
            except Exception as error:  # Whatever it is: the writer lives on, and records are at most not kept.
                self.counts.write_errors += 1
                self._pause(error)
        if index is not None:
            index.close()

    def _write_batch(self, index: Index | None, batch: WriteBatch) -> None:
        kept: set[RecordName] = set()
        try:
            if index is not None:
                index.touch(batch.touched)
                # What was queued when a write failed would fail alike, one by one.
                if batch.writes and self._clock() >= self._paused_until:
                    kept = self._write_records(index, batch.writes)
        finally:
            self._done.extend((item.name, item.name in kept, item.payload) for item in batch.writes)
            self._queue.release(batch)

    def _write_records(self, index: Index, writes: Sequence[Write]) -> set[RecordName]:
        """The records that the tier has now. Two transactions for all: one before the files, one after them."""
        files = [(item.name, encode(item.payload[0][0])) for item in writes]
        entries = [
            (IndexEntry(piece.piece, item.name.kind, size_on_disk(parts), piece.skip), item.used)
            for item, (_, parts) in zip(writes, files, strict=True)
            for piece in (item.payload[0][0].identity,)
        ]
        try:
            answers, evicted = index.reserve(
                entries, self._namespace, self._clock(), cap=self._max_bytes, hourly=self._hourly_bytes,
                unlink=self._files.unlink,
            )  # fmt: skip
        except OSError as error:
            self.counts.write_errors += 1
            self._pause(error)
            return set()
        self.counts.evicted += evicted
        self.counts.dropped_too_large += answers.count(Reserved.TOO_LARGE)
        if over := answers.count(Reserved.OVER_BUDGET):
            self.counts.dropped_over_budget += over
            self._paused_until = self._clock() + _PAUSE_S
        by_answer = list(zip(files, entries, answers, strict=True))
        written = self._write_files(index, [file for file, _, answer in by_answer if answer is Reserved.YES])
        for (name, _), (entry, _), answer in by_answer:
            if answer is Reserved.YES and name in written:
                self.counts.written += 1
                self.counts.written_bytes += entry.nbytes
        return written | {name for (name, _), _, answer in by_answer if answer is Reserved.PRESENT}

    def _write_files(self, index: Index, files: Sequence[tuple[RecordName, list[memoryview]]]) -> set[RecordName]:
        """Write reserved records and book them as ready; a disk that fails once is not asked for the others."""
        written: list[RecordName] = []
        try:
            for name, parts in files:
                self._files.write(name, parts)
                written.append(name)
        except OSError as error:
            index.abandon([name for name, _ in files[len(written) :]])
            self.counts.write_errors += 1
            self._pause(error)
        lost = index.commit(written)
        for name in lost:
            self._files.unlink(name)
        return set(written) - set(lost)

    def _remove(self, index: Index, names: Sequence[RecordName]) -> None:
        for name in names:
            with contextlib.suppress(OSError):
                self._files.unlink(name)
        index.remove(names)
        self._bad.difference_update(names)

    def _remove_missing(self, index: Index, name: RecordName) -> None:
        if not self._files.path(name).exists():  # Another process may have written it anew.
            index.remove([name])
        self._bad.discard(name)

    def _pause(self, error: Exception) -> None:
        paused = self._clock() < self._paused_until
        self._paused_until = self._clock() + _PAUSE_S
        if not paused:
            log.warning("nothing is written to the cache folder for %d s: %s", _PAUSE_S, error)
