"""The dashboard's numbers, made of readings and samples alone, so that each is what its metric says."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise

from omlx import __version__
from omlx.pool import SlotSnapshot
from omlx.protocols.admin.overview import Advice, History, Kv, ModelRow, Overview, PullRow
from omlx.protocols.admin.power import PowerStatus
from omlx.server.telemetry.reading import MetricsReading, between, quantile
from omlx.server.telemetry.samples import MetricsSample, Samples

NOW_S = 10.0
"""A rate "now" is that of at least so many seconds."""
_REQUESTS = "omlx_http_requests_total"
_A_YEAR_S = 365 * 86400.0


def overview(
    reading: MetricsReading,
    samples: Samples,
    models: Sequence[SlotSnapshot],
    *,
    uptime: float,
    pulls: list[PullRow],
    advice: list[Advice],
    names_changed: int,
    power: PowerStatus,
) -> Overview:
    now = MetricsSample.of(reading)
    recent, hour = samples.before(NOW_S, now.at) or now, samples.oldest() or now
    seconds = max(now.at - recent.at, 0.001)
    first = between(now.first, hour.first)
    refused = int(now.refused - hour.refused)
    return Overview(
        version=__version__,
        uptime=uptime,
        running=int(now.running),
        waiting=int(now.waiting),
        read_rate=(now.read - recent.read) / seconds,
        read_tokens=int(now.read),
        generated_rate=(now.generated - recent.generated) / seconds,
        generated_tokens=int(now.generated),
        requests=int(reading.total(_REQUESTS) - reading.total(_REQUESTS, model="")),
        batch_fill=_share(now.rows - hour.rows, now.places - hour.places),
        batch_limit=int(max(reading.by("omlx_batch_limit", "model").values(), default=0)),
        first_token_p50=quantile(0.5, first),
        first_token_p95=quantile(0.95, first),
        memory_used=int(now.memory),
        memory_limit=int(reading.total("omlx_memory_limit_bytes")),
        kv=_kv(reading, now, hour),
        refused=refused,
        names_changed=names_changed,
        power=power,
        models=[_model(reading, model) for model in models],
        pulls=pulls,
        advice=[*advice, *_about_refused(refused)],
    )


def _about_refused(count: int) -> list[Advice]:
    """What to do about requests that were turned away."""
    if not count:
        return []
    text = f"{count} request was" if count == 1 else f"{count} requests were"
    how = (
        "the Requests page tells why each was: a full queue (max_queue, max_concurrent_requests), memory (smaller or "
        "fewer models, max_process_memory), or a deadline of its own"
    )
    return [Advice("requests turned away", "warn", f"{text} answered with 503 in the last hour", how)]


def _kv(reading: MetricsReading, now: MetricsSample, hour: MetricsSample) -> Kv:
    cached = now.from_ram + now.from_disk - hour.from_ram - hour.from_disk
    return Kv(
        ram_tokens=int(now.from_ram),
        disk_tokens=int(now.from_disk),
        prompt_tokens=int(now.prompt),
        hit_rate=_share(cached, now.prompt - hour.prompt),
        ram_bytes=int(reading.total("omlx_kv_ram_bytes")),
        ram_limit=int(reading.total("omlx_kv_ram_limit_bytes")),
        disk_bytes=int(reading.total("omlx_kv_disk_bytes")),
        disk_limit=int(reading.total("omlx_kv_disk_limit_bytes")),
    )


def _model(reading: MetricsReading, model: SlotSnapshot) -> ModelRow:
    name = model.spec.name
    left = (model.expires_at - datetime.now().astimezone()).total_seconds()
    return ModelRow(
        name=name,
        state=model.state,
        size=int(reading.total("omlx_model_memory_bytes", model=name)),
        running=int(reading.total("omlx_requests_running", model=name)),
        waiting=model.waiting,
        context_length=model.context_length,
        weights=model.weights,
        pinned=model.pinned,
        expires_in=None if model.users or left > _A_YEAR_S else max(0.0, left),
        crashes=model.crashes,
    )


def history(samples: Sequence[MetricsSample]) -> History:
    """Rates are those since the sample before; the first sample has none of its own."""
    pairs = list(pairwise(samples))
    return History(
        at=[now.at for _, now in pairs],
        running=[now.running for _, now in pairs],
        waiting=[now.waiting for _, now in pairs],
        read_rate=[(now.read - before.read) / max(now.at - before.at, 0.001) for before, now in pairs],
        generated_rate=[(now.generated - before.generated) / max(now.at - before.at, 0.001) for before, now in pairs],
        memory=[now.memory for _, now in pairs],
        cached_share=[
            _share(now.from_ram + now.from_disk - before.from_ram - before.from_disk, now.prompt - before.prompt)
            for before, now in pairs
        ],
    )


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
