"""The hot tier: records in RAM.

Owner of the records' arrays while they are in memory. Bounded by bytes and by the number of arrays (on Metal every
live array is a buffer, and there is a limit to those), in order of last use. It lives in the thread that owns MLX. A
record is *dirty* until the cold tier has it; what is pushed out is handed back so that the owner can still write it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from omlx_cache.records import IndexEntry, Kind, Record, RecordName


class HotRecord(NamedTuple):
    """A record, whether only RAM has it (`dirty`), and when it was last used (seconds since the epoch)."""

    record: Record
    dirty: bool
    used: float


class HotTier:
    """An LRU of records. `max_bytes` 0 keeps nothing."""

    def __init__(self, max_bytes: int, max_arrays: int) -> None:
        self.max_bytes = max_bytes
        self.max_arrays = max_arrays
        self.nbytes = 0
        self.arrays = 0
        self.evictions = 0
        self._records: OrderedDict[RecordName, HotRecord] = OrderedDict()
        self._children: dict[tuple[bytes, Kind], list[tuple[bytes, bytes]]] = {}
        """(parent, kind) → (packed tokens, key), sorted: neighbours in this order share the longest prefixes."""

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, name: RecordName) -> bool:
        return name in self._records

    def names(self) -> Iterator[RecordName]:
        """All records, least recently used first."""
        return iter(self._records)

    def get(self, name: RecordName) -> Record | None:
        """The record; looking does not count as use (see `touch`)."""
        held = self._records.get(name)
        return held.record if held else None

    def put(self, record: Record, *, dirty: bool, used: float) -> list[HotRecord]:
        """Keep a record; returns those that had to go for it (itself, if it is larger than the budget)."""
        held = HotRecord(record, dirty, used)
        if record.name in self._records:
            self.touch([record.name], used)
            return []
        if record.nbytes > self.max_bytes or len(record.arrays) > self.max_arrays:
            return [held]
        self._records[record.name] = held
        insort(self._siblings(record), (record.piece.packed, record.piece.key))
        self.nbytes += record.nbytes
        self.arrays += len(record.arrays)
        return self._shrink()

    def touch(self, names: Iterable[RecordName], used: float) -> None:
        """Mark as used, the last one most recently."""
        for name in names:
            held = self._records.pop(name, None)
            if held is not None:
                self._records[name] = held._replace(used=used)

    def discard(self, name: RecordName) -> None:
        held = self._records.pop(name, None)
        if held is None:
            return
        record = held.record
        siblings = self._siblings(record)
        siblings.remove((record.piece.packed, record.piece.key))
        if not siblings:
            del self._children[record.piece.parent, record.kind]
        self.nbytes -= record.nbytes
        self.arrays -= len(record.arrays)

    def clean(self, name: RecordName) -> None:
        """The cold tier has this record now."""
        held = self._records.get(name)
        if held is not None and held.dirty:
            self._records[name] = held._replace(dirty=False)

    def dirty(self) -> list[HotRecord]:
        """Records that only RAM has, least recently used first."""
        return [held for held in self._records.values() if held.dirty]

    def resize(self, max_bytes: int) -> list[HotRecord]:
        """Change the budget; returns what had to go."""
        self.max_bytes = max_bytes
        return self._shrink()

    def clear(self) -> None:
        self._records.clear()
        self._children.clear()
        self.nbytes = self.arrays = 0

    def neighbours(self, parent: bytes, kind: Kind, packed: bytes) -> list[IndexEntry]:
        """The pieces behind `parent` next to these tokens in order: no others share longer prefixes with them."""
        siblings = self._children.get((parent, kind), [])
        place = bisect_left(siblings, (packed, b""))
        nearest = (self._records[RecordName(key, kind)].record for _, key in siblings[max(0, place - 1) : place + 1])
        return [IndexEntry(record.piece, kind, record.nbytes, record.skip) for record in nearest]

    def sizes(self, parent: bytes, kind: Kind) -> set[int]:
        """The lengths in tokens of the pieces behind `parent`."""
        return {len(packed) // 4 for packed, _ in self._children.get((parent, kind), [])}

    def check_integrity(self) -> list[str]:
        """What is wrong with the books; empty when they agree with the records."""
        faults = []
        if self.nbytes != sum(held.record.nbytes for held in self._records.values()):
            faults.append("the hot tier's byte count is off")
        if self.arrays != sum(len(held.record.arrays) for held in self._records.values()):
            faults.append("the hot tier's array count is off")
        listed = {RecordName(key, kind) for (_, kind), siblings in self._children.items() for _, key in siblings}
        if listed != set(self._records):
            faults.append("the hot tier's list of siblings is off")
        if self.nbytes > self.max_bytes or self.arrays > self.max_arrays:
            faults.append("the hot tier is over its budget")
        return faults

    def _siblings(self, record: Record) -> list[tuple[bytes, bytes]]:
        return self._children.setdefault((record.piece.parent, record.kind), [])

    def _shrink(self) -> list[HotRecord]:
        gone = []
        while self._records and (self.nbytes > self.max_bytes or self.arrays > self.max_arrays):
            held = next(iter(self._records.values()))
            self.discard(held.record.name)
            self.evictions += 1
            gone.append(held)
        return gone
