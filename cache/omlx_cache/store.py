"""The store: both tiers as one, for one loaded model.

Owner of the decisions between RAM and disk. The engine asks with a prompt (`lookup`) and gets caches that hold the
longest usable prefix; it hands in live caches as a sequence grows (`begin`, then the methods of `Capture`) and calls
`tick` once per step. All methods belong to the thread that owns MLX.

Nothing here may fail a request: trouble in a tier is a miss, counted and logged.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from omlx_cache import checkpoint
from omlx_cache.capture import Capture
from omlx_cache.chain import Chain
from omlx_cache.cold import ColdTier
from omlx_cache.explain import Explanation, explain
from omlx_cache.hot import Held, HotTier
from omlx_cache.keys import Media, namespace
from omlx_cache.pinned import Sessions
from omlx_cache.plan import ORDINARY_SSD, Needs, Plan, Rates, plan_restore
from omlx_cache.readahead import Reading
from omlx_cache.record_file import HostRecord, Identity
from omlx_cache.records import Kind, Name, Record
from omlx_cache.scan import Scan, scan
from omlx_cache.stats import ColdCounts, Stats, TierUsage

if TYPE_CHECKING:
    from omlx_cache.layout import CacheLayout

log = logging.getLogger(__name__)

_SMALL_MODEL = 64 << 10
"""Bytes per token below which the default block is smaller: such a model's prompts are short and its blocks cheap."""
_PRESSURE_EVERY_S = 0.5
_SMOOTHING = 0.3
_FORGIVING = 0.95
_KEEP_GONE = 50_000


class StoreConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a store is set up. Sizes in bytes, times in seconds."""

    fingerprint: str
    """Must differ wherever weights, adapter, quantization or the precision they are computed in differ."""
    model: str = ""
    """The model's name, for people."""
    block_size: int = 0
    """Tokens per block, 16 to 1024; 0: by model size."""
    hot_bytes: int
    hot_arrays: int = 100_000
    folder: Path | None = None
    """Of the cold tier; None: RAM only."""
    cold_bytes: int = 0
    hourly_write_bytes: int = 0
    """Most bytes written to disk per hour; 0: no limit."""
    write_queue_bytes: int = 256 << 20
    write_through: bool = False
    """Write every record at once instead of when it is pushed out of RAM or at a checkpoint."""
    checkpoint_interval: float = 300.0
    snapshot_every: int = 2048
    """Most tokens between state snapshots in long prompts (models with recurrent layers), where memory allows."""
    snapshot_least: int = 0
    """Tokens that are computed again sooner than a snapshot is placed for them."""


class Match(NamedTuple):
    """Answer to a lookup: `caches` hold the first `cached_tokens` tokens of the prompt, ready to compute the rest."""

    cached_tokens: int
    caches: list[Any]
    from_ram: int
    from_disk: int
    """Tokens by where their records came from; together `cached_tokens`. One that was read from disk before anybody
    asked for it comes from disk the first time it is used."""
    branch: int
    """Position at which the prompt layer_caches what is stored."""
    partials: tuple[tuple[int, Name], ...] = ()
    """Partial pieces used, by the block they lie in: a capture that completes the block replaces them."""
    why: Explanation | None = None
    """What ends the restored part."""


class PrefixStore:
    """The prefix cache of one model. `layout` says how its caches are read; see `StoreConfig`."""

    def __init__(self, layout: CacheLayout, config: StoreConfig, *, clock: Callable[[], float] = time.time) -> None:
        self.layout = layout
        self.config = config
        self.block_size = config.block_size or default_block_size(layout.expected_bytes(1024) // 1024)
        if not 16 <= self.block_size <= 1024:
            raise ValueError(f"the cache block size must be 16 to 1024 tokens, not {self.block_size}")
        self.namespace = namespace(config.fingerprint, layout.fingerprint, self.block_size)
        self.hot = HotTier(config.hot_bytes, config.hot_arrays)
        self.cold: ColdTier | None = None
        if config.folder is not None and config.cold_bytes > 0 and layout.supported:
            self.cold = ColdTier(
                config.folder, self.namespace, model=config.model, fingerprint=config.fingerprint,
                max_bytes=config.cold_bytes, hourly_bytes=config.hourly_write_bytes,
                queue_bytes=config.write_queue_bytes, clock=clock,
            )  # fmt: skip
        self.clock = clock
        self._gone: dict[bytes, None] = {}
        """Keys of records that were evicted and not written, oldest first, for `explain`."""
        self._unasked: set[Name] = set()
        """Records read from disk into RAM before anybody asked for them, and not used since."""
        self._needs = Needs(layout.needs, layout.window)
        self._rates = Rates()
        self._last_checkpoint = clock()
        self._last_pressure = clock()
        self._checkpointing = False
        self.sessions = Sessions(self)
        self._lookups = self._hits = self._looked_up = self._from_ram = self._from_disk = 0
        self._restore_failures = self._capture_failures = self._captured = self._recompute = self._lost = 0

    @property
    def enabled(self) -> bool:
        """Whether anything is stored at all."""
        return self.layout.supported and (self.hot.max_bytes > 0 or self.cold is not None)

    @property
    def wants_boundaries(self) -> bool:
        """Whether it makes a difference to `begin` to know boundaries: plain attention can be cut anywhere."""
        return self.enabled and self.layout.needs != {Kind.KV}

    # ------------------------------------------------------------------ lookup
    def lookup(self, tokens: Sequence[int], media: Sequence[Media] = (), *, most: int | None = None) -> Match:
        """Caches with the longest usable prefix of a prompt; at least its last token is left to compute.

        `media` are the prompt's images; positions within one are never restored to. `most`: restore no more tokens.
        """
        self._lookups += 1
        self._looked_up += len(tokens)
        if not self.enabled or len(tokens) < 2:
            return self._miss(0)
        chain = Chain(self.namespace, self.block_size, tokens, media)
        found, plan = self.plan(chain, most)
        if plan.possible > plan.position:
            self._recompute += 1
            # A disk that was slow once is tried again some day: without reading there is no new measurement.
            slow = self._rates.seconds_per_cold_byte or ORDINARY_SSD
            self._rates = self._rates._replace(seconds_per_cold_byte=slow * _FORGIVING)
        for _ in range(len(found.levels) + 1):
            if not plan.position:
                break
            records = self._load(plan)
            if records is not None:
                match = self._restore(chain, found, plan, records) or self._miss(found.edge.matched)
                return match._replace(why=self._why(chain, found, plan) if match.cached_tokens else None)
            found, plan = self.plan(chain, most)  # Something turned out to be unreadable and is not offered again.
        return self._miss(found.edge.matched)._replace(why=self._why(chain, found, plan))

    def read_ahead(self, tokens: Sequence[int], media: Sequence[Media] = ()) -> Reading:
        """Start reading from disk what a lookup of this prompt will want, while it waits for its turn."""
        if not self.enabled or self.cold is None or len(tokens) < 2:
            return Reading(())
        _, plan = self.plan(Chain(self.namespace, self.block_size, tokens, media))
        wanted = [(use.name, use.cold_bytes) for use in plan.uses if use.cold]
        return self.cold.read_ahead(wanted)

    def explain(self, tokens: Sequence[int], media: Sequence[Media] = ()) -> Explanation:
        """What a lookup of this prompt would find, and why not more. Changes nothing."""
        if not self.enabled:
            return Explanation.disabled(len(tokens), self.layout.reason or "the cache is switched off")
        chain = Chain(self.namespace, self.block_size, tokens, media)
        return self._why(chain, *self.plan(chain))

    def _why(self, chain: Chain, found: Scan, plan: Plan) -> Explanation:
        return explain(chain, found, plan, gone=self._was_evicted, others=self._other_models)

    def _was_evicted(self, key: bytes) -> bool:
        return key in self._gone or (
            self.cold is not None and self.cold.ask(lambda index: index.was_evicted(key), False)
        )

    def _other_models(self, packed: bytes) -> list[str]:
        return self.cold.ask(lambda index: index.other_namespaces(packed, self.namespace), []) if self.cold else []

    def note_prefill(self, tokens: int, seconds: float) -> None:
        """Tell how long computing this many prompt tokens took; it is weighed against reading from disk."""
        if tokens > 0:
            self._rates = self._rates._replace(
                seconds_per_token=_smooth(self._rates.seconds_per_token, seconds / tokens)
            )

    def plan(self, chain: Chain, most: int | None = None, *, rates: Rates | None = None) -> tuple[Scan, Plan]:
        """What the tiers hold for a chain, and from where it would be restored (to `most` tokens).

        `rates`: the speeds that decide between reading and computing, if not those that were measured.
        """
        found = scan(chain, self.hot, self.cold, self._needs)
        tokens = len(chain) if most is None else min(len(chain), most + 1)
        rates = self._rates if rates is None else rates
        return found, plan_restore(found.levels, self.block_size, self._needs, tokens, chain.media, rates)

    def _load(self, plan: Plan) -> dict[Name, Record] | None:
        """The plan's records; None when one could not be read."""
        records = {use.name: record for use in plan.uses if (record := self.hot.get(use.name)) is not None}
        wanted = [use.name for use in plan.uses if use.name not in records]
        if not wanted:
            return records
        assert self.cold is not None
        hosts = self.cold.read(wanted)
        begun = time.perf_counter()
        loaded = [record for name, host in hosts.items() if (record := self.from_host(name, host))]
        self._note_reading(time.perf_counter() - begun, sum(record.nbytes for record in loaded))
        for record in loaded:
            records[record.name] = record
            self.let_go(self.hot.put(record, dirty=False, used=self.clock()))
        return records if len(loaded) == len(wanted) else None

    def _note_reading(self, seconds: float, nbytes: int) -> None:
        """Take in how fast the disk was, and how long turning these bytes into arrays took."""
        assert self.cold is not None
        disk_seconds, disk_bytes = self.cold.take_speed()
        if nbytes and disk_bytes:
            rate = disk_seconds / disk_bytes + seconds / nbytes
            self._rates = self._rates._replace(seconds_per_cold_byte=_smooth(self._rates.seconds_per_cold_byte, rate))

    def from_host(self, name: Name, host: HostRecord) -> Record | None:
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

    def _restore(self, chain: Chain, found: Scan, plan: Plan, records: dict[Name, Record]) -> Match | None:
        try:
            caches = self.layout.restore_from(plan, records)
        except Exception as error:
            # Whatever stored tensors make a cache class raise: computing the prompt is always possible.
            log.warning("a cached prefix could not be restored and is removed: %s", error)
            self._restore_failures += 1
            self.forget([use.name for use in plan.uses])
            return None
        names = [use.name for use in plan.uses]
        now = self.clock()
        self.hot.touch(reversed(names), now)
        if self.cold is not None:
            self.cold.touch(names)
        from_disk = plan.tokens_of({use.name for use in plan.uses if use.cold or use.name in self._unasked})
        self._unasked.difference_update(names)
        self._hits += 1
        self._from_disk += from_disk
        self._from_ram += plan.position - from_disk
        partials = tuple(
            (use.start // self.block_size, use.name)
            for use in plan.uses
            if records[use.name].piece.size < self.block_size and use.name.kind != Kind.STATE
        )
        return Match(plan.position, caches, plan.position - from_disk, from_disk, found.edge.matched, partials)

    def _miss(self, branch: int) -> Match:
        return Match(0, self.layout.fresh(), 0, 0, branch)

    # ------------------------------------------------------------------ capture
    def begin(
        self,
        tokens: Sequence[int],
        media: Sequence[Media] = (),
        *,
        match: Match | None = None,
        boundaries: Iterable[int] = (),
    ) -> Capture:
        """Follow a sequence that starts with this prompt. `match` is its lookup.

        `boundaries` are positions where later prompts may part from this one: the end of the system prompt and tools,
        the end of each turn as the next prompt will render it.
        """
        return Capture(self, tokens, media, match, boundaries)

    def keep(self, record: Record) -> None:
        """Take a new record in (for `Capture`); it replaces one with more tokens missing."""
        self._captured += 1
        self._unasked.discard(record.name)
        if record.name in self.hot:
            self.hot.discard(record.name)
        if self.cold is not None and self.cold.holds(record.name, self.block_size):
            self.cold.remove([record.name])
        self.let_go(self.hot.put(record, dirty=True, used=self.clock()))
        if self.config.write_through and record.name in self.hot:
            self.write(Held(record, True, self.clock()))

    def holds(self, name: Name, skip: int = 0) -> bool:
        """Whether a tier has this record, with no more tokens missing than `skip`."""
        record = self.hot.get(name)
        if record is not None and record.skip <= skip:
            return True
        return self.cold is not None and self.cold.holds(name, skip)

    def forget(self, names: Sequence[Name]) -> None:
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

    def let_go(self, gone: list[Held]) -> None:
        """Write what is pushed out of RAM, if nothing else has it."""
        for held in gone:
            self._unasked.discard(held.record.name)
            if held.dirty and not self.write(held):
                self._lost += 1
                self._gone[held.record.name.key] = None
                if len(self._gone) > _KEEP_GONE:
                    del self._gone[next(iter(self._gone))]

    def write(self, held: Held) -> bool:
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

    # ------------------------------------------------------------------ housekeeping
    def tick(self) -> None:
        """Call once per engine step, and now and then when idle: cheap unless a checkpoint is due."""
        if self.cold is None:
            return
        self.collect()
        self.cold.tidy()
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
        recent: list[Name] = []
        if self.cold is not None:
            recent = self.cold.ask(lambda index: index.recent(self.namespace, 10_000), recent)
        return self.read_into_ram(recent, min(budget, self.hot.max_bytes - self.hot.nbytes))

    def read_into_ram(self, names: Sequence[Name], budget: int) -> int:
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

    def clear(self) -> int:
        """Delete everything stored for this model; returns the number of records that were on disk."""
        self.hot.clear()
        self._unasked.clear()
        stored: list[Name] = []
        if self.cold is not None:
            self.cold.drop_ahead()
            self.cold.flush(10)
            self.collect()
            stored = self.cold.ask(lambda index: index.names_in(self.namespace), stored)
            self.cold.remove(stored)
            self.cold.change(lambda index: index.unpin_all(self.namespace))
            self.cold.flush(10)
        return len(stored)

    def close(self, budget: float = 10.0) -> None:
        """Checkpoint within `budget` seconds and end all threads. The store is of no use afterwards."""
        self.checkpoint(budget)
        if self.cold is not None:
            self.cold.close(1.0)
            self.collect()
        self.hot.clear()

    @property
    def usage(self) -> TierUsage:
        """The counts of lookups alone, which cost nothing to read."""
        return TierUsage(self._lookups, self._hits, self._looked_up, self._from_ram, self._from_disk)

    def stats(self) -> Stats:
        """What happened since the store was opened, and what it holds."""
        cold = self.cold
        cold_bytes, cold_records = cold.ask(lambda index: index.totals(), (0, 0)) if cold else (0, 0)
        written = cold.ask(lambda index: index.written_in_hour(self.clock()), 0) if cold else 0
        return Stats(
            supported=self.layout.supported, reason=self.layout.reason, block_size=self.block_size,
            lookups=self._lookups, hits=self._hits, tokens_looked_up=self._looked_up, tokens_from_ram=self._from_ram,
            tokens_from_disk=self._from_disk, restore_failures=self._restore_failures,
            capture_failures=self._capture_failures, captured=self._captured, recompute_preferred=self._recompute,
            hot_records=len(self.hot), hot_bytes=self.hot.nbytes, hot_max_bytes=self.hot.max_bytes,
            hot_arrays=self.hot.arrays, hot_evictions=self.hot.evictions, lost=self._lost,
            cold=cold is not None and not cold.problem, cold_problem=cold.problem if cold else "",
            cold_bytes=cold_bytes, cold_max_bytes=self.config.cold_bytes, cold_records=cold_records,
            cold_written_this_hour=written, cold_counts=cold.snapshot() if cold else ColdCounts(),
            seconds_per_cold_byte=self._rates.seconds_per_cold_byte, seconds_per_token=self._rates.seconds_per_token,
        )  # fmt: skip

    def check_integrity(self) -> list[str]:
        """What is wrong with the books in RAM; empty when all agree."""
        return self.hot.check_integrity()

    def collect(self) -> None:
        """Note what the writer has finished."""
        if self.cold is not None:
            for name, kept in self.cold.done():
                if kept:
                    self.hot.clean(name)


def default_block_size(bytes_per_token: int) -> int:
    """Tokens per block: 256, and 64 for small models, whose blocks are cheap and whose prompts are short."""
    return 64 if bytes_per_token < _SMALL_MODEL else 256


def _smooth(old: float, new: float) -> float:
    return new if not old else old + _SMOOTHING * (new - old)
