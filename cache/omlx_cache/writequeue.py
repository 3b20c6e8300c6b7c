"""The *write queue* between the thread that hands records over and the writer thread of the cold tier.

Records wait a moment for others, because a batch costs the index far fewer writes than its records one by one.
Anything else that is asked of the writer ends that wait and is done in turn. What the queue may hold in bytes is
bounded; putting never waits.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from omlx_cache.index import Index
from omlx_cache.record_file import HostRecord
from omlx_cache.records import RecordName

BATCH_RECORDS, BATCH_BYTES = 256, 16 << 20
"""Most that is written together."""
LINGER_S = 0.25
"""How long a record waits for others. A process that is killed meanwhile loses them."""


class Write(NamedTuple):
    """A record to write, last used at `used`."""

    name: RecordName
    used: float
    nbytes: int
    payload: list[tuple[HostRecord, Any]]
    """The record and what owns its bytes. The thread that owns MLX empties it: arrays end where they were made."""


class Do(NamedTuple):
    """Work for the writer on its index."""

    action: Callable[[Index], Any]


class WriteBatch(NamedTuple):
    """Records to write together, and others that were used meanwhile, with the time."""

    writes: list[Write]
    touched: dict[RecordName, float]


class WriteQueue:
    """Holds at most `max_bytes` of records; a batch has at most `batch_bytes`, or one record."""

    def __init__(self, max_bytes: int, batch_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._batch_bytes = min(batch_bytes, max_bytes // 2)
        self._items: deque[Write | Do | None] = deque()
        self._orders = 0
        """Entries that are not records: they end the wait for more records."""
        self._touched: dict[RecordName, float] = {}
        self._bytes = 0
        """Of records that are not written yet, those of the batch at work included."""
        self._changed = threading.Condition()

    # ------------------------------------------------------------------ the thread that hands over
    def reserve(self, nbytes: int) -> bool:
        """Take this many bytes of the queue for a record to come; False where there is no room."""
        with self._changed:
            if self._bytes + nbytes > self._max_bytes:
                return False
            self._bytes += nbytes
            return True

    def put(self, item: Write | Do | None) -> None:
        """Add something to do, a record for which room was reserved, or None: the end."""
        with self._changed:
            self._items.append(item)
            self._orders += not isinstance(item, Write)
            self._changed.notify_all()

    def touch(self, names: Sequence[RecordName], now: float) -> None:
        """Records that were used at `now`: noted with the next batch."""
        with self._changed:
            self._touched.update(dict.fromkeys(names, now))
            self._changed.notify_all()

    def clear(self) -> None:
        """Drop everything that waits."""
        with self._changed:
            self._items.clear()
            self._touched.clear()
            self._orders = 0

    def room(self) -> int:
        """Bytes that can be reserved now."""
        return self._max_bytes - self._bytes

    def wait_for_room(self, nbytes: int, timeout: float) -> bool:
        """Wait until this many bytes can be reserved; False when they cannot within `timeout` seconds."""
        if nbytes > self._max_bytes:
            return False
        with self._changed:
            return self._changed.wait_for(lambda: self._bytes + nbytes <= self._max_bytes, timeout)

    # ------------------------------------------------------------------ the writer thread
    def take(self) -> WriteBatch | Do | None:
        """What to do next; waits for it."""
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._touched)
            self._changed.wait_for(self._is_batch_full, LINGER_S)
            writes: list[Write] = []
            size = 0
            while self._items and len(writes) < BATCH_RECORDS and (size < self._batch_bytes or not writes):
                item = self._items[0]
                if not isinstance(item, Write):
                    break
                writes.append(item)
                size += item.nbytes
                self._items.popleft()
            if writes or self._touched:
                touched, self._touched = self._touched, {}
                return WriteBatch(writes, touched)
            if not self._items:  # cleared meanwhile
                return WriteBatch([], {})
            order = self._items.popleft()
            assert not isinstance(order, Write)
            self._orders -= 1
            return order

    def _is_batch_full(self) -> bool:
        return self._orders > 0 or self._bytes >= self._batch_bytes or len(self._items) >= BATCH_RECORDS

    def release(self, batch: WriteBatch) -> None:
        """The records of a batch are written, or will not be."""
        with self._changed:
            self._bytes -= sum(item.nbytes for item in batch.writes)
            self._changed.notify_all()
