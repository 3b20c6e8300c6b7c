"""The Prometheus metrics. Counters and histograms are fed as things happen; gauges are read from the pool when asked.

Label sets are bounded: routes and outcomes are few, and of models and keys the first `_MOST_NAMES` have names of
their own, the others count as "other".
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import prometheus_client
import psutil
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from omlx import __version__
from omlx.messages.request import Finish
from omlx.record import RequestRecord

if TYPE_CHECKING:
    from omlx.pool import Pool, SlotSnapshot
    from omlx.pool.events import UnloadReason
    from omlx.runner.host import EndReason

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]

_MOST_NAMES = 64
_FIRST_TOKEN = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.35, 0.5, 0.75, 1, 1.5, 2.5, 3.5, 5, 7.5, 10, 15, 20, 30, 45, 60),
    *(90, 120, 300),
)
_GAP = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)
_LOAD = (0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
_WHOLE = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_WAIT = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 120, 300)

_STORE_FAULTS = {
    "restore": ("restore_failures",),
    "capture": ("capture_failures",),
    "damaged": ("cold_counts", "damaged"),
    "missing": ("cold_counts", "missing"),
    "write": ("cold_counts", "write_errors"),
    "queue_full": ("cold_counts", "dropped_queue_full"),
    "over_budget": ("cold_counts", "dropped_over_budget"),
    "too_large": ("cold_counts", "dropped_too_large"),
    "unfinished": ("cold_counts", "unfinished_removed"),
    "index_rebuilt": ("cold_counts", "index_rebuilt"),
    "lost": ("lost",),
}
"""Label to the place of its count in the KV store's own statistics."""


class Names:
    """The values of one label: known ones as they are, more than `_MOST_NAMES` as "other"."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def __call__(self, name: str) -> str:
        if name not in self._known:
            if len(self._known) >= _MOST_NAMES:
                return "other"
            self._known.add(name)
        return name


class Metrics:
    """Hears of requests (`record.Listener`) and of models (`pool.events.PoolEvents`)."""

    def __init__(self, pool: Pool, *, changed: Callable[[], None] = lambda: None) -> None:
        """`changed` is called after a model has come or begins to go."""
        self._changed = changed
        self.registry = CollectorRegistry()
        # First, because reading the pool brings counters up to date that are collected after it.
        self.registry.register(_Now(self))
        self._pool = pool
        self._models = Names()
        self._keys = Names()
        self._seen: dict[tuple[int, str], int] = {}
        """Counts that runners and their stores had at the last look, by process and name."""
        self._gap_of: dict[str, Callable[[float], None]] = {}
        self._stores: dict[int, tuple[str, Mapping[str, Any]]] = {}
        """The last statistics of each runner's KV store, by process."""

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"omlx_{name}", text, labels, registry=self.registry)

        def histogram(name: str, text: str, buckets: Iterable[float], *labels: str) -> Histogram:
            return Histogram(f"omlx_{name}", text, labels, registry=self.registry, buckets=tuple(buckets))

        self._requests = counter("http_requests_total", "HTTP requests answered", "dialect", "route", "status", "model")
        self._duration = histogram(
            "http_request_seconds", "Time from a request's arrival to the end of its answer", _WHOLE, "dialect"
        )
        self._failed = counter("request_failures_total", "Requests that ended with an error", "dialect", "status")
        self._key_requests = counter("key_requests_total", "Requests that came with an API key", "key")
        self._key_tokens = counter("key_tokens_total", "Tokens of requests with an API key", "key", "kind")
        self._limited = counter("rate_limited_total", "Requests refused by a key's rate limit", "key")
        self._prompt = counter("prompt_tokens_total", "Tokens of finished prompts, cached ones included", "model")
        self._cached = counter("cached_tokens_total", "Prompt tokens that came from the KV store", "model", "tier")
        self._read = counter("read_tokens_total", "Prompt tokens that were computed", "model")
        self._generated = counter("generated_tokens_total", "Tokens generated", "model")
        self._decode_steps = counter("decode_steps_total", "Steps that decoded", "model")
        self._decoded_rows = counter("decoded_rows_total", "Sequences in all decode steps together", "model")
        self._places = counter("decode_places_total", "What decoded_rows were, had every step been full", "model")
        self._guesses = counter("guesses_total", "Guessed tokens that were checked", "model", "accepted")
        self._first = histogram(
            "time_to_first_token_seconds", "Time from a request's arrival to its answer's first token", _FIRST_TOKEN,
            "model",
        )  # fmt: skip
        self._gap = histogram("inter_token_seconds", "Time between two tokens of an answer", _GAP, "model")
        self._queued = histogram("queue_seconds", "Time a request waited for its place in the batch", _WAIT, "model")
        self._lookups = counter(
            "kv_lookups_total", "Prompts looked up in the KV store, by what ended the cached part", "model", "outcome"
        )
        self._evicted = counter("kv_evictions_total", "Records that left a tier of the KV store", "model", "tier")
        self._written = counter("kv_written_bytes_total", "Bytes written to the KV store on disk", "model")
        self._faults = counter("kv_faults_total", "What went wrong in the KV store", "model", "kind")
        self._loads = counter("model_loads_total", "Loads of models", "model", "outcome")
        self._load_time = histogram("model_load_seconds", "Time a model's load took", _LOAD)
        self._unloads = counter("model_unloads_total", "Models unloaded; room, memory: evicted", "model", "reason")
        self._power_changes = counter("power_changes_total", "Changes of the power policy or its reason")
        self._power_changes_seen = 0
        self._restarts = counter("runner_restarts_total", "Runners that ended unasked", "model", "reason")

    def text(self, accept: str) -> tuple[bytes, str]:
        """All metrics in the format that `accept` asks for, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type

    # ------------------------------------------------------------ requests
    def first_piece(self, record: RequestRecord, seconds: float) -> None:
        self._first.labels(self._models(record.model)).observe(seconds)

    def gap(self, record: RequestRecord, seconds: float) -> None:
        # Once per token: finding the label's child would cost more than counting.
        observe = self._gap_of.get(record.model)
        if observe is None:
            name = self._models(record.model)
            observe = self._gap.labels(name).observe
            if name != "other":
                self._gap_of[record.model] = observe
        observe(seconds)

    def finished(self, record: RequestRecord, finish: Finish) -> None:
        model = self._models(record.model)
        self.read(record, finish.prompt_tokens)
        self._cached.labels(model, "ram").inc(finish.cached_tokens - finish.disk_tokens)
        self._cached.labels(model, "disk").inc(finish.disk_tokens)
        self._queued.labels(model).observe(finish.queue_ns / 1e9)
        if finish.cache_reason:
            self._lookups.labels(model, finish.cache_reason).inc()
        if record.key:
            self._key_tokens.labels(self._keys(record.key), "generated").inc(finish.completion_tokens)

    def read(self, record: RequestRecord, tokens: int) -> None:
        self._prompt.labels(self._models(record.model)).inc(tokens)
        if record.key:
            self._key_tokens.labels(self._keys(record.key), "prompt").inc(tokens)

    def ended(self, record: RequestRecord) -> None:
        """A request has had its answer, or its client has left."""
        model = self._models(record.model) if record.model else ""
        self._requests.labels(record.dialect, record.route, str(record.status), model).inc()
        self._duration.labels(record.dialect).observe(record.seconds)
        if record.error and not record.left:
            self._failed.labels(record.dialect, str(record.status)).inc()
        if record.key:
            key = self._keys(record.key)
            self._key_requests.labels(key).inc()
            if record.status == 429:
                self._limited.labels(key).inc()

    # ------------------------------------------------------------ models
    def loaded(self, model: str, seconds: float) -> None:
        self._loads.labels(self._models(model), "loaded").inc()
        self._load_time.observe(seconds)
        self._changed()

    def load_failed(self, model: str, why: str) -> None:
        self._loads.labels(self._models(model), why).inc()

    def unloaded(self, model: str, reason: UnloadReason) -> None:
        self.look()
        self._unloads.labels(self._models(model), reason).inc()
        self._changed()

    def runner_ended(self, model: str, reason: EndReason) -> None:
        self.look()
        self._restarts.labels(self._models(model), reason).inc()
        self._changed()

    # ------------------------------------------------------------ what runners count
    def look(self) -> list[SlotSnapshot]:
        """Take over what the runners' heartbeats say; returns the loaded models."""
        models = self._pool.loaded()
        for one in models:
            beat, model = one.heartbeat, self._models(one.spec.name)
            for count, metric in (
                (beat.tokens_read, self._read),
                (beat.tokens_generated, self._generated),
                (beat.decoded_rows, self._decoded_rows),
            ):
                self._advance(metric.labels(model), one.pid, metric._name, count)
            for accepted, count in (("yes", beat.accepted), ("no", beat.guessed - beat.accepted)):
                self._advance(self._guesses.labels(model, accepted), one.pid, f"guesses {accepted}", count)
            steps = self._advance(self._decode_steps.labels(model), one.pid, "steps", beat.decode_steps)
            self._places.labels(model).inc(steps * self._pool.places)
        self._forget({one.pid for one in models})
        return models

    def store_says(self, model: str, pid: int, stats: Mapping[str, Any]) -> None:
        """Take over the statistics of a runner's KV store."""
        name = self._models(model)
        self._stores[pid] = (name, stats)
        self._advance(self._evicted.labels(name, "ram"), pid, "evicted ram", _count(stats, "hot_evictions"))
        self._advance(self._evicted.labels(name, "disk"), pid, "evicted disk", _count(stats, "cold_counts", "evicted"))
        self._advance(self._written.labels(name), pid, "written", _count(stats, "cold_counts", "written_bytes"))
        for kind, place in _STORE_FAULTS.items():
            self._advance(self._faults.labels(name, kind), pid, kind, _count(stats, *place))

    def _advance(self, counter: Counter, pid: int, what: str, count: int) -> int:
        """A runner counts from its start, the metric from the server's. Returns by how much it has grown."""
        grown = max(0, count - self._seen.get((pid, what), 0))
        counter.inc(grown)
        if grown:
            self._seen[(pid, what)] = count
        return grown

    def _forget(self, alive: set[int]) -> None:
        if any(pid not in alive for pid, _ in self._seen):
            self._seen = {key: count for key, count in self._seen.items() if key[0] in alive}
        self._stores = {pid: stats for pid, stats in self._stores.items() if pid in alive}

    # ------------------------------------------------------------ now
    def gauges(self) -> Iterator[Metric]:
        models = self.look()
        yield _gauge("build_info", "The version that runs", ["version"], [((__version__,), 1)])
        running = [((self._models(one.spec.name),), one.running) for one in models]
        yield _gauge("requests_running", "Requests being read or answered", ["model"], running)
        yield _gauge("requests_waiting", "Requests that wait for a model or a place", [], [((), self._pool.waiting)])
        limits = [((self._models(one.spec.name),), self._pool.places) for one in models if one.state == "ready"]
        yield _gauge("batch_limit", "Most requests that the model works on at once", ["model"], limits)
        states = [((self._models(one.spec.name), one.state), 1) for one in models]
        yield _gauge("model_state", "1 for the state that a model in memory is in", ["model", "state"], states)
        sizes = [((self._models(one.spec.name),), one.size) for one in models]
        yield _gauge("model_memory_bytes", "Memory that a model takes", ["model"], sizes)
        memory = self._pool.memory()
        yield _gauge("memory_used_bytes", "Memory in use under max_process_memory", [], [((), memory.used)])
        yield _gauge("memory_limit_bytes", "What max_process_memory allows", [], [((), memory.cap)])
        with contextlib.suppress(psutil.Error):
            resident = psutil.Process().memory_info().rss
            yield _gauge("server_memory_bytes", "Resident memory of the server process itself", [], [((), resident)])
        yield from self._power_gauges()
        yield from self._kv_gauges()

    def _power_gauges(self) -> Iterator[Metric]:
        report = self._pool.power.report
        limits = report.limits
        self._power_changes.inc(report.changes - self._power_changes_seen)
        self._power_changes_seen = report.changes
        yield _gauge("power_policy", "1 for the power policy in use", ["policy"], [((report.policy,), 1)])
        share = limits.share * limits.pace
        yield _gauge("power_share", "Part of the time for batch and background requests", [], [((), share)])
        yield _gauge("power_pace", "Part of the time for all replies", [], [((), limits.pace)])
        watts = [] if report.watts is None else [((), report.watts)]
        yield _gauge("power_watts", "Measured power, while a power policy or limit needs it", [], watts)
        yield _gauge("power_limit_watts", "The setting power_limit; 0: none", [], [((), report.power_limit)])

    def _kv_gauges(self) -> Iterator[Metric]:
        stores = list(self._stores.values())
        ram = [((name,), _count(stats, "hot_bytes")) for name, stats in stores]
        ram_limits = [((name,), _count(stats, "hot_max_bytes")) for name, stats in stores]
        yield _gauge("kv_ram_bytes", "Cached prefixes in RAM", ["model"], ram)
        yield _gauge("kv_ram_limit_bytes", "RAM for cached prefixes", ["model"], ram_limits)
        # All models share one folder, and each store tells its whole size.
        disk = max((_count(stats, "cold_bytes") for _, stats in stores), default=0)
        limit = max((_count(stats, "cold_max_bytes") for _, stats in stores), default=0)
        yield _gauge("kv_disk_bytes", "Cached prefixes on disk, of all models", [], [((), disk)])
        yield _gauge("kv_disk_limit_bytes", "Disk space for cached prefixes", [], [((), limit)])


class _Now:
    """Asks for the gauges whenever the registry is read."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        yield from self._metrics.gauges()


def _gauge(name: str, text: str, labels: list[str], values: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    family = GaugeMetricFamily(f"omlx_{name}", text, labels=labels)
    # Two models that count as "other" share a sample.
    together: dict[tuple[str, ...], float] = {}
    for key, value in values:
        together[key] = together.get(key, 0) + value
    for key, value in together.items():
        family.add_metric(key, value)
    return family


def _count(stats: Any, *place: str) -> int:
    for name in place:
        stats = stats.get(name, 0) if isinstance(stats, Mapping) else 0
    return stats if isinstance(stats, int) else 0
