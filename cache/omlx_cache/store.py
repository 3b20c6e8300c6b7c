"""The store: the prefix cache of one loaded model.

The engine asks with a prompt (`lookup`) and gets caches that hold the
longest usable prefix; it hands in live caches as a sequence grows (`begin`, then the methods of `Capture`) and calls
`tick` once per step. `Tiers` keeps the records. All methods belong to the thread that owns MLX.

Nothing here may fail a request: trouble in a tier is a miss, counted and logged.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from omlx_cache.capture import Capture
from omlx_cache.chain import Chain
from omlx_cache.config import StoreConfig
from omlx_cache.explain import Explanation, explain
from omlx_cache.keys import Media
from omlx_cache.match import Match
from omlx_cache.pinned import Sessions
from omlx_cache.plan import ORDINARY_SSD, Rates, RestorePlan
from omlx_cache.readahead import PendingRead
from omlx_cache.records import Kind, Record, RecordName
from omlx_cache.scan import Scan
from omlx_cache.stats import ColdCounts, Stats, TierUsage
from omlx_cache.tiers import Tiers

if TYPE_CHECKING:
    from omlx_cache.layout import CacheLayout

__all__ = ["Match", "PrefixStore", "StoreConfig"]

log = logging.getLogger(__name__)

_SMOOTHING = 0.3
_FORGIVING = 0.95


class PrefixStore(Tiers):
    """The prefix cache of one model. `layout` says how its caches are read; see `StoreConfig`."""

    def __init__(self, layout: CacheLayout, config: StoreConfig, *, clock: Callable[[], float] = time.time) -> None:
        super().__init__(layout, config, clock=clock)
        self._rates = Rates()
        self.sessions = Sessions(self)
        self._lookups = self._hits = self._looked_up = self._from_ram = self._from_disk = 0
        self._restore_failures = self._recompute = 0

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
        scan, plan = self.plan(chain, self._rates, most)
        if plan.possible > plan.position:
            self._recompute += 1
            # A disk that was slow once is tried again some day: without reading there is no new measurement.
            slow = self._rates.seconds_per_cold_byte or ORDINARY_SSD
            self._rates = self._rates._replace(seconds_per_cold_byte=slow * _FORGIVING)
        for _ in range(len(scan.levels) + 1):
            if not plan.position or plan.position < self.config.restore_least:
                break
            records = self._load(plan)
            if records is not None:
                match = self._restore(chain, scan, plan, records) or self._miss(scan.edge.matched)
                return match._replace(why=self._why(chain, scan, plan) if match.cached_tokens else None)
            # Something turned out to be unreadable and is not offered again.
            scan, plan = self.plan(chain, self._rates, most)
        return self._miss(scan.edge.matched)._replace(why=self._why(chain, scan, plan))

    def read_ahead(self, tokens: Sequence[int], media: Sequence[Media] = ()) -> PendingRead:
        """Start reading from disk what a lookup of this prompt will want, while it waits for its turn."""
        if not self.enabled or self.cold is None or len(tokens) < 2:
            return PendingRead(())
        _, plan = self.plan(Chain(self.namespace, self.block_size, tokens, media), self._rates)
        wanted = [(use.name, use.cold_bytes) for use in plan.uses if use.cold]
        return self.cold.read_ahead(wanted)

    def explain(self, tokens: Sequence[int], media: Sequence[Media] = ()) -> Explanation:
        """What a lookup of this prompt would find, and why not more. Changes nothing."""
        if not self.enabled:
            return Explanation.disabled(len(tokens), self.layout.reason or "the cache is switched off")
        chain = Chain(self.namespace, self.block_size, tokens, media)
        return self._why(chain, *self.plan(chain, self._rates))

    def _why(self, chain: Chain, scan: Scan, plan: RestorePlan) -> Explanation:
        return explain(chain, scan, plan, gone=self._was_evicted, others=self._other_models)

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

    def _load(self, plan: RestorePlan) -> dict[RecordName, Record] | None:
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

    def _restore(self, chain: Chain, scan: Scan, plan: RestorePlan, records: dict[RecordName, Record]) -> Match | None:
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
        return Match(plan.position, caches, plan.position - from_disk, from_disk, scan.edge.matched, partials)

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
        return Capture(self, tokens, media, match, boundaries, self.sessions.note_finished)

    # ------------------------------------------------------------------ figures

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


def _smooth(old: float, new: float) -> float:
    return new if not old else old + _SMOOTHING * (new - old)
