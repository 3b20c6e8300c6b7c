"""The cold tier: records on SSD, shared by all models and processes that use the folder.

Owner of the index and the files. Three kinds of threads: the thread that owns MLX asks and hands over host bytes; one
*writer* thread changes files and index; a few *reader* threads bring files into memory (see `readahead`). Writer and
readers see host bytes only. Handing over never waits: a full queue drops the record and counts it.

Trouble with the disk is never trouble for a request: what cannot be read is a miss, what cannot be written is not kept,
and a folder that cannot be used at all leaves the tier switched off with `problem` saying why.
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
from typing import Any, NamedTuple, TypeVar

import msgspec

from omlx_cache.container import DamagedError, HostRecord, encode
from omlx_cache.files import size_on_disk
from omlx_cache.index import Index, IndexNewerError, IndexUnusableError, Reserved
from omlx_cache.opening import open_folder, remove_index
from omlx_cache.readahead import ReadAhead, Reading
from omlx_cache.records import Entry, Kind, Name, Stored
from omlx_cache.stats import ColdCounts

log = logging.getLogger(__name__)
_T = TypeVar("_T")

_PAUSE_S = 30.0
"""After a failed write, how long nothing is tried again."""


class _Write(NamedTuple):
    name: Name
    used: float
    nbytes: int
    payload: list[tuple[HostRecord, Any]]
    """The record and what owns its bytes. The thread that owns MLX empties it: arrays end where they were made."""


class _Do(NamedTuple):
    """Work for the writer on its index."""

    action: Callable[[Index], Any]


class ColdTier:
    """The tier in `folder`, for the model with this `namespace`; `model` is its name for people.

    `max_bytes` caps the whole folder, index included. `hourly_bytes` 0: no write budget. `queue_bytes` bounds what
    waits to be written.
    """

    def __init__(
        self,
        folder: Path,
        namespace: bytes,
        *,
        model: str,
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
        self._queue_bytes = queue_bytes
        self._clock = clock
        self._bad: set[Name] = set()
        self._queue: deque[_Write | _Do | None] = deque()
        self._queued: dict[Name, int] = {}
        self._waiting = threading.Condition()
        self._waiting_bytes = 0
        self._done: deque[tuple[Name, bool, list[tuple[HostRecord, Any]]]] = deque()
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
        self._writer = threading.Thread(target=self._write_loop, args=(model,), name="omlx-cache-write", daemon=True)
        self._writer.start()

    # ------------------------------------------------------------------ asking (the thread that owns MLX)
    def find(self, keys: Sequence[bytes]) -> dict[Name, Stored]:
        """The records under these keys that can be read."""
        nothing: dict[Name, Stored] = {}
        found = self._ask(lambda index: index.find(keys), nothing)
        return {name: stored for name, stored in found.items() if name not in self._bad}

    def neighbours(self, parent: bytes, kind: Kind, packed: bytes) -> list[Entry]:
        """The pieces behind `parent` next to these tokens in order: no others share longer prefixes with them."""
        nothing: list[Entry] = []
        found = self._ask(lambda index: index.neighbours(parent, kind, packed), nothing)
        return [entry for entry in found if Name(entry.piece.key, kind) not in self._bad]

    def sizes(self, parent: bytes, kind: Kind) -> set[int]:
        """The lengths in tokens of the pieces behind `parent`."""
        return self._ask(lambda index: index.sizes(parent, kind), set())

    def ask(self, question: Callable[[Index], _T], otherwise: _T) -> _T:
        """Anything else the index knows."""
        return self._ask(question, otherwise)

    def holds(self, name: Name, skip: int = 0) -> bool:
        """Whether the record is there or on its way, with no more tokens missing than `skip`."""
        if self._queued.get(name, skip + 1) <= skip:
            return True
        return name not in self._bad and self._ask(lambda index: index.has(name, skip), False)

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
    def read_ahead(self, wanted: Iterable[tuple[Name, int]]) -> Reading:
        """Start reading these (records and their sizes in bytes), for a `read` soon to come."""
        if self._ahead is None or self.problem:
            return Reading(())
        return self._ahead.start(wanted)

    def read(self, names: Sequence[Name]) -> dict[Name, HostRecord]:
        """Those of these records that are intact. The others are counted, and not offered again."""
        found: dict[Name, HostRecord] = {}
        if self._ahead is None or self.problem:
            return found
        for name, future in zip(names, self._ahead.take(names), strict=True):
            try:
                found[name] = future.result()
                self.counts.read += 1
                self.counts.read_bytes += sum(array.data.nbytes for array in found[name].arrays)
            except (OSError, DamagedError, CancelledError, MemoryError) as error:
                self.reject(name, error)
        return found

    def take_speed(self) -> tuple[float, int]:
        """(seconds, bytes) that reading from disk took since the last call, read ahead or not."""
        return self._ahead.take_speed() if self._ahead is not None else (0.0, 0)

    @property
    def reading_ahead(self) -> int:
        """Records that were read ahead, or are being read, and have not been asked for yet."""
        return len(self._ahead) if self._ahead is not None else 0

    def tidy(self) -> None:
        """Let go of what was read ahead for requests that never came."""
        if self._ahead is not None:
            self._ahead.drop_stale()

    def drop_ahead(self) -> None:
        """Forget what was read ahead and not asked for."""
        if self._ahead is not None:
            self._ahead.drop()

    def reject(self, name: Name, error: Exception) -> None:
        """This record is of no use: do not offer it again, remove it."""
        self._bad.add(name)  # Until the writer has removed it.
        if isinstance(error, FileNotFoundError):
            self.counts.missing += 1
            self._put(_Do(lambda index: self._remove_missing(index, name)))
        else:
            self.counts.damaged += 1
            log.warning("removing the cached record %s: %s", self._files.path(name).name, error)
            self._put(_Do(lambda index: self._remove(index, [name])))

    # ------------------------------------------------------------------ writing
    def write(self, host: HostRecord, used: float, keep: Any) -> bool:
        """Hand over a record, last used at `used`; False when it is dropped (the queue is full, writing is paused).

        `keep` is held until the bytes are no longer needed, and let go in the thread that calls `done`.
        """
        name = Name(host.identity.piece.key, host.identity.kind)
        nbytes = sum(array.data.nbytes for array in host.arrays)
        if self.problem or self._writer is None or self._clock() < self._paused_until:
            return False
        with self._waiting:
            if self._waiting_bytes + nbytes > self._queue_bytes:
                self.counts.dropped_queue_full += 1
                return False
            self._waiting_bytes += nbytes
            self._queued[name] = host.identity.skip
        self._put(_Write(name, used, nbytes, [(host, keep)]))
        return True

    def room(self) -> int:
        """Bytes the write queue can take now."""
        if self.problem or self._writer is None or self._clock() < self._paused_until:
            return 0
        return self._queue_bytes - self._waiting_bytes

    def wait_for_room(self, nbytes: int, timeout: float) -> bool:
        """Wait until the queue can take this many bytes; False when it cannot within `timeout` seconds."""
        if nbytes > self._queue_bytes or self._clock() < self._paused_until:
            return False
        with self._waiting:
            return self._waiting.wait_for(lambda: self._waiting_bytes + nbytes <= self._queue_bytes, timeout)

    def snapshot(self) -> ColdCounts:
        """The counts as they are now."""
        return msgspec.structs.replace(self.counts)

    def done(self) -> list[tuple[Name, bool]]:
        """Records handed over earlier that are finished now: whether the tier has them. Lets go of their owners."""
        finished = []
        while self._done:
            name, kept, payload = self._done.popleft()
            payload.clear()
            self._queued.pop(name, None)
            finished.append((name, kept))
        return finished

    def touch(self, names: Sequence[Name]) -> None:
        """Mark as used now."""
        now = self._clock()
        self._put(_Do(lambda index: index.touch(names, now)))

    def remove(self, names: Sequence[Name]) -> None:
        """Delete records."""
        self._put(_Do(lambda index: self._remove(index, names)))

    def change(self, action: Callable[[Index], Any]) -> None:
        """Any other change to the index, by the writer in turn."""
        self._put(_Do(action))

    def flush(self, timeout: float) -> bool:
        """Wait until all that was handed over is done; False when that takes longer than `timeout` seconds."""
        if self._writer is None:
            return True
        passed = threading.Event()
        self._put(_Do(lambda _: passed.set()))
        return passed.wait(timeout)

    def close(self, timeout: float) -> bool:
        """Flush within `timeout` seconds and end the threads; what is not written by then is dropped."""
        flushed = self.flush(timeout)
        if self._ahead is not None:
            self._ahead.close()
        with self._waiting:
            if not flushed:
                self._queue.clear()
            self._queue.append(None)
            self._waiting.notify_all()
        if self._writer is not None:
            self._writer.join(timeout + 1)
            self._index.close()
            self._writer = None
        self.problem = self.problem or "it is closed"
        return flushed

    def _put(self, item: _Write | _Do) -> None:
        if self._writer is None:
            return
        with self._waiting:
            self._queue.append(item)
            self._waiting.notify_all()

    # ------------------------------------------------------------------ the writer thread
    def _write_loop(self, model: str) -> None:
        try:
            index = Index(self.folder)
            index.name_model(self._namespace, model)
        except (sqlite3.Error, IndexUnusableError) as error:
            self._switch_off(error)
            index = None
        while (item := self._take()) is not None:
            try:
                if isinstance(item, _Write):
                    self._done.append((item.name, self._write_one(index, item), item.payload))
                elif index is not None:
                    item.action(index)
            except Exception as error:  # Whatever it is: the writer lives on, and a record is at most not kept.
                self.counts.write_errors += 1
                self._pause(error)
                if isinstance(item, _Write):
                    self._done.append((item.name, False, item.payload))
            finally:
                if isinstance(item, _Write):
                    with self._waiting:
                        self._waiting_bytes -= item.nbytes
                        self._waiting.notify_all()
        if index is not None:
            index.close()

    def _take(self) -> _Write | _Do | None:
        with self._waiting:
            while not self._queue:
                self._waiting.wait()
            return self._queue.popleft()

    def _write_one(self, index: Index | None, item: _Write) -> bool:
        """Whether the tier has the record now."""
        # What was queued when a write failed would fail alike, one by one.
        if index is None or self._clock() < self._paused_until:
            return False
        name, (host, _) = item.name, item.payload[0]
        parts = encode(host)
        entry = Entry(host.identity.piece, name.kind, size_on_disk(parts), host.identity.skip)
        try:
            verdict, evicted = index.reserve(
                entry, self._namespace, item.used, self._clock(), cap=self._max_bytes, hourly=self._hourly_bytes,
                unlink=self._files.unlink,
            )  # fmt: skip
        except OSError as error:
            self.counts.write_errors += 1
            self._pause(error)
            return False
        self.counts.evicted += evicted
        if verdict is Reserved.OVER_BUDGET:
            self._paused_until = self._clock() + _PAUSE_S
        if verdict is not Reserved.YES:
            self.counts.dropped_over_budget += verdict is Reserved.OVER_BUDGET
            self.counts.dropped_too_large += verdict is Reserved.TOO_LARGE
            return verdict is Reserved.PRESENT
        try:
            self._files.write(name, parts)
        except OSError as error:
            index.abandon(name)
            self.counts.write_errors += 1
            self._pause(error)
            return False
        if not index.commit(name):
            self._files.unlink(name)
            return False
        self.counts.written += 1
        self.counts.written_bytes += entry.nbytes
        return True

    def _remove(self, index: Index, names: Sequence[Name]) -> None:
        for name in names:
            with contextlib.suppress(OSError):
                self._files.unlink(name)
        index.remove(names)
        self._bad.difference_update(names)

    def _remove_missing(self, index: Index, name: Name) -> None:
        if not self._files.path(name).exists():  # Another process may have written it anew.
            index.remove([name])
        self._bad.discard(name)

    def _pause(self, error: Exception) -> None:
        paused = self._clock() < self._paused_until
        self._paused_until = self._clock() + _PAUSE_S
        if not paused:
            log.warning("nothing is written to the cache folder for %d s: %s", _PAUSE_S, error)
