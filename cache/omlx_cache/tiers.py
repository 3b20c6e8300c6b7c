"""The tiers: the records of one loaded model, in RAM and on disk.

Owner of the decisions between the two: what is pushed out of RAM goes to disk, what is read from disk comes into RAM,
and checkpoints write what only RAM has. All methods belong to the thread that owns MLX.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from omlx_cache import checkpoint
from omlx_cache.chain import Chain
from omlx_cache.cold import ColdTier
from omlx_cache.config import StoreConfig, default_block_size
from omlx_cache.hot import HotRecord, HotTier
from omlx_cache.keys import namespace
from omlx_cache.plan import Needs, Rates, RestorePlan, plan_restore
from omlx_cache.record_file import HostRecord, Identity
from omlx_cache.records import Record, RecordName
from omlx_cache.scan import Scan, scan

if TYPE_CHECKING:
    from omlx_cache.layout import CacheLayout

log = logging.getLogger(__name__)

_PRESSURE_EVERY_S = 0.5
_KEEP_GONE = 50_000


class Tiers:
    """Both tiers as one. `layout` says how a model's caches are read."""

    def __init__(self, layout: CacheLayout, config: StoreConfig, *, clock: Callable[[], float] = time.time) -> None:
        self.layout = layout
        self.config = config
        self.block_size = config.block_size or default_block_size(layout.expected_bytes(1024) // 1024)
        if not 16 <= self.block_size <= 1024:
            raise ValueError(f"the cache block size must be 16 to 1024 tokens, not {self.block_size}")
        self.namespace = namespace(config.fingerprint, layout.fingerprint, self.block_size)
        self.hot = HotTier(config.hot_bytes, config.hot_arrays)
        self.cold: ColdTier | None = None
        if config.folder and config.cold_bytes > 0 and layout.supported:
            self.cold = ColdTier(
                Path(config.folder), self.namespace, model=config.model, fingerprint=config.fingerprint,
                max_bytes=config.cold_bytes, hourly_bytes=config.write_budget,
                queue_bytes=config.write_queue_bytes, clock=clock,
            )  # fmt: skip
        self.clock = clock
        self._gone: dict[bytes, None] = {}
        """Keys of records that were evicted and not written, oldest first, for `explain`."""
        self._unasked: set[RecordName] = set()
        """Records read from disk into RAM before anybody asked for them, and not used since."""
        self._last_checkpoint = clock()
        self._last_pressure = clock()
        self._checkpointing = False
        self.checkpoints = True
        """False: no checkpoints are written, only what RAM has no room for, and everything at the end."""
        self._needs = Needs(layout.needs, layout.window)
        self._captured = self._capture_failures = self._lost = 0

    @property
    def enabled(self) -> bool:
        """Whether anything is stored at all."""
        return self.layout.supported and (self.hot.max_bytes > 0 or self.cold is not None)

    def plan(self, chain: Chain, rates: Rates, most: int | None = None) -> tuple[Scan, RestorePlan]:
        """What the tiers hold for a chain, and from where it would be restored (to `most` tokens).

        `rates`: the speeds that decide between reading and computing.
        """
        index_scan = scan(chain, self.hot, self.cold, self._needs)
        tokens = len(chain) if most is None else min(len(chain), most + 1)
        return index_scan, plan_restore(index_scan.levels, self.block_size, self._needs, tokens, chain.media, rates)

    def keep(self, record: Record) -> None:
        """Take a new record in (for `Capture`); it replaces one with more tokens missing."""
        self._captured += 1
        self._unasked.discard(record.name)
        if record.name in self.hot:
            self.hot.discard(record.name)
        if self.cold is not None and self.cold.holds(record.name, self.block_size):
            self.cold.remove([record.name])
        self.let_go(self.hot.put(record, dirty=True, used=self.clock()))
        if self.config.write_through and self.checkpoints and record.name in self.hot:
            self.write(HotRecord(record, True, self.clock()))

    def holds(self, name: RecordName, skip: int = 0) -> bool:
        """Whether a tier has this record, with no more tokens missing than `skip`."""
        record = self.hot.get(name)
        if record is not None and record.skip <= skip:
            return True
        return self.cold is not None and self.cold.holds(name, skip)

    def forget(self, names: Sequence[RecordName]) -> None:
        """Delete records from both tiers."""
        for name in names:
            self.hot.discard(name)
            self._unasked.discard(name)
        if self.cold is not None:
            self.cold.remove(names)

    def capture_failed(self, error: Exception) -> None:
        """A capture gave up (for `Capture`)."""
        if not self._capture_failures:
            log.warning("a sequence is not cached: %s", error)
        self._capture_failures += 1

    def let_go(self, gone: list[HotRecord]) -> None:
        """Write what is pushed out of RAM, if nothing else has it."""
        for held in gone:
            self._unasked.discard(held.record.name)
            if held.dirty and not self.write(held):
                self._lost += 1
                self._gone[held.record.name.key] = None
                if len(self._gone) > _KEEP_GONE:
                    del self._gone[next(iter(self._gone))]

    def write(self, held: HotRecord) -> bool:
        """Hand a record to the cold tier; False when it did not take it."""
        if self.cold is None:
            return False
        record = held.record
        if self.cold.holds(record.name, record.skip):
            return True
        if self.cold.room() < record.nbytes:
            return False
        host = HostRecord(
            Identity(record.piece, record.kind, self.namespace, record.skip),
            self.layout.to_host(record.arrays),
            record.meta,
        )
        return self.cold.write(host, held.used, record)

    def from_host(self, name: RecordName, host: HostRecord) -> Record | None:
        """A record from the bytes of its file; None when they are of no use."""
        assert self.cold is not None
        try:
            arrays = self.layout.from_host(host.arrays)
        except Exception as error:  # An intact file with tensors this MLX cannot hold is still of no use.
            self.cold.reject(name, error)
            return None
        return Record(
            host.identity.piece, name.kind, arrays, sum(array.nbytes for array in arrays), host.meta, host.identity.skip
        )

    def read_into_ram(self, names: Sequence[RecordName], budget: int) -> int:
        """Records from disk, in this order, up to `budget` bytes; returns the bytes. The first is evicted last."""
        records: list[Record] = []
        loaded = 0
        for name in names:
            if loaded >= budget:
                break
            if name in self.hot or self.cold is None:
                continue
            for host in self.cold.read([name]).values():
                if record := self.from_host(name, host):
                    loaded += record.nbytes
                    records.append(record)
        for record in reversed(records):
            self._unasked.add(record.name)
            self.let_go(self.hot.put(record, dirty=False, used=self.clock()))
        return loaded

    def tick(self) -> None:
        """Call once per engine step, and now and then when idle: cheap unless a checkpoint is due."""
        if self.cold is None:
            return
        self.collect()
        self.cold.tidy()
        if not self.checkpoints:
            return
        now = self.clock()
        fill = self.hot.nbytes / max(1, self.hot.max_bytes)
        moment = checkpoint.Moment(now, self._last_checkpoint, self.config.checkpoint_interval, fill, self.cold.room())
        if checkpoint.is_due(moment):
            self._checkpointing, self._last_checkpoint = True, now
        pressed = checkpoint.is_pressed(moment) and now - self._last_pressure >= _PRESSURE_EVERY_S
        if not (self._checkpointing or pressed):
            return
        self._last_pressure = now
        dirty = [held for held in self.hot.dirty() if not self.cold.holds(held.record.name, held.record.skip)]
        batch = checkpoint.next_batch(dirty, moment.room)
        taken = sum(self.write(held) for held in batch)
        self._checkpointing = self._checkpointing and taken < len(dirty)

    def checkpoint(self, budget: float) -> bool:
        """Write what only RAM has, most recently used first, for at most `budget` seconds; True when all is written."""
        if self.cold is None:
            return True
        deadline = time.monotonic() + budget
        for held in reversed(self.hot.dirty()):
            while not self.write(held) and not self.cold.problem:
                left = deadline - time.monotonic()
                if left <= 0 or not self.cold.wait_for_room(held.record.nbytes, left):
                    break
            if time.monotonic() >= deadline:
                break
        flushed = self.cold.flush(max(0.0, deadline - time.monotonic()))
        self.collect()
        self._last_checkpoint = self.clock()
        return flushed and not self.hot.dirty()

    def resize_hot(self, max_bytes: int) -> None:
        """Change the RAM budget; what no longer fits goes to disk as far as the queue takes it."""
        self.let_go(self.hot.resize(max_bytes))

    def warm(self, budget: int) -> int:
        """Bring the model's most recently used records from disk into RAM, up to `budget` bytes; returns the bytes."""
        recent: list[RecordName] = []
        if self.cold is not None:
            recent = self.cold.ask(lambda index: index.recent(self.namespace, 10_000), recent)
        return self.read_into_ram(recent, min(budget, self.hot.max_bytes - self.hot.nbytes))

    def clear(self) -> int:
        """Delete everything stored for this model; returns the number of records that were on disk."""
        self.hot.clear()
        self._unasked.clear()
        stored: list[RecordName] = []
        if self.cold is not None:
            self.cold.drop_ahead()
            self.cold.flush(10)
            self.collect()
            stored = self.cold.ask(lambda index: index.names_in(self.namespace), stored)
            self.cold.remove(stored)
            self.cold.change(lambda index: index.pins.remove_all(self.namespace))
            self.cold.flush(10)
        return len(stored)

    def close(self, budget: float = 10.0) -> None:
        """Checkpoint within `budget` seconds and end all threads. The store is of no use afterwards."""
        self.checkpoint(budget)
        if self.cold is not None:
            self.cold.close(1.0)
            self.collect()
        self.hot.clear()

    def collect(self) -> None:
        """Note what the writer has finished."""
        if self.cold is not None:
            for name, kept in self.cold.done():
                if kept:
                    self.hot.clean(name)

    def check_integrity(self) -> list[str]:
        """What is wrong with the books in RAM; empty when all agree."""
        return self.hot.check_integrity()
