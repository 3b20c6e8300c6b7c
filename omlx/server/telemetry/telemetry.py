"""The one collector: opens and closes the records of requests, takes samples, and answers whoever wants to know."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from omlx.doctor.advice import advise
from omlx.pool import RequestFailed, SlotSnapshot
from omlx.protocols.admin.overview import Advice, History, Overview
from omlx.record import RequestRecord, make_current
from omlx.server.status import power_status, status_of
from omlx.server.telemetry.journal import Journal
from omlx.server.telemetry.metrics import Metrics
from omlx.server.telemetry.overview import history, overview
from omlx.server.telemetry.pulls import Pulls
from omlx.server.telemetry.reading import MetricsReading
from omlx.server.telemetry.samples import EVERY_S, MetricsSample, Samples
from omlx.server.telemetry.traces import open_traces

if TYPE_CHECKING:
    from omlx_registry import Registry

    from omlx.pool import Pool
    from omlx.settings import Settings

log = logging.getLogger("omlx.server")

_PHRASES = {status.value: status.phrase for status in HTTPStatus}
_STORE_ANSWER_S = 0.5
"""How long a look waits for a busy runner's KV store; then its numbers are those of the last look."""


class Telemetry:
    """See the module text. Everything runs on the server's event loop."""

    def __init__(self, settings: Settings, registry: Registry, pool: Pool) -> None:
        self._pool = pool
        self._registry = registry
        self.metrics = Metrics(pool, changed=self.stir)
        self.traces = open_traces(settings)
        self.journal = Journal()
        self.pulls = Pulls()
        self.samples = Samples()
        self.watchers = 0
        """Open streams of events."""
        self._started = time.monotonic()
        self._sampling: asyncio.Task[None] | None = None
        self._looked: dict[int, int] = {}
        """Steps that each runner had made when its store was last asked."""
        self._advice: list[Advice] = []
        self._pins: tuple[list[str], str] = ([], "")
        """The pinned models at the last look, and the warning about them."""
        self.closing = asyncio.Event()
        """The server ends: streams of events do, too."""
        self.news = asyncio.Event()
        """Set once, when something has happened that the dashboard shows; from then on there is another."""
        pool.events = self.metrics
        pool.power.changed = self.stir

    # ------------------------------------------------------------ life
    async def start(self) -> None:
        self._sampling = asyncio.create_task(self._sample(), name="samples")

    async def close(self) -> None:
        self.end_streams()
        if self._sampling is not None:
            self._sampling.cancel()
            await asyncio.gather(self._sampling, return_exceptions=True)
        await self.pulls.close()
        if self.traces is not None:
            await asyncio.to_thread(self.traces.close)

    def stir(self) -> None:
        """Wake whoever waits for news."""
        self.news.set()
        self.news = asyncio.Event()

    def end_streams(self) -> None:
        self.closing.set()
        self.stir()

    async def _sample(self) -> None:
        while True:
            try:
                await self._ask_stores()
                self.samples.keep(MetricsSample.of(self._read()))
                self._advice = await self._advise()
            except Exception:
                log.exception("no sample of the metrics could be taken")
            self.stir()
            await asyncio.sleep(EVERY_S)

    async def _advise(self) -> list[Advice]:
        pinned = self._pool.pinned()
        if pinned != self._pins[0]:
            # Reads files, so only when something has changed.
            warning = await asyncio.to_thread(lambda: self._pool.pin_warning(self._registry.list()))
            self._pins = (pinned, warning if pinned else "")
        findings = advise(status_of(self._pool, pin_warning=self._pins[1]))
        return [Advice(one.name, one.state, one.text, one.advice) for one in findings if one.state != "ok"]

    # ------------------------------------------------------------ requests
    def open(self, id: str, scope: Any, protocol: str) -> tuple[int, RequestRecord]:
        """The record of a request that has just arrived, made the current one; and its number in the journal."""
        record = RequestRecord(id, listener=self.metrics)
        record.method, record.path = scope["method"], scope["path"]
        record.dialect = protocol
        make_current(record)
        self.stir()
        return self.journal.open(record), record

    def end(self, number: int, record: RequestRecord, *, route: str, status: int) -> None:
        """The answer is complete, or nobody reads it any more."""
        record.ended, record.stage = time.monotonic(), "done"
        record.route, record.status = route, status
        if record.left:
            record.error = "the client left"
        elif status >= 400 and not record.error:
            record.error = _PHRASES.get(status, f"status {status}")
        self.journal.close(number)
        self.metrics.ended(record)
        if self.traces is not None and record.model:
            self.traces.tell(record)
        self.stir()

    # ------------------------------------------------------------ questions
    async def text(self, accept: str) -> tuple[bytes, str]:
        """The metrics as Prometheus reads them, and their content type."""
        await self._ask_stores()
        return self.metrics.text(accept)

    def overview(self) -> Overview:
        reading = self._read()
        return overview(
            reading,
            self.samples,
            self._pool.loaded(),
            uptime=time.monotonic() - self._started,
            pulls=self.pulls.rows(),
            advice=self._advice,
            names_changed=self._pool.names_changed,
            power=power_status(self._pool.power.report),
        )

    def history(self) -> History:
        return history(self.samples.kept)

    def latest(self) -> History | None:
        """The youngest sample of the history, alone; None where there is none yet."""
        kept = self.samples.kept
        return history((kept[-2], kept[-1])) if len(kept) > 1 else None

    # ------------------------------------------------------------ looking
    def _read(self) -> MetricsReading:
        return MetricsReading(self.metrics.registry.collect())

    async def _ask_stores(self) -> None:
        """Bring the KV stores' numbers up to date, of runners that have done something since the last time."""
        models = [one for one in self._pool.loaded() if one.state == "ready"]
        self._looked = {one.pid: self._looked[one.pid] for one in models if one.pid in self._looked}
        stale = [one for one in models if self._looked.get(one.pid) != one.heartbeat.steps]
        if stale:
            await asyncio.gather(*(self._ask_store(one) for one in stale))

    async def _ask_store(self, model: SlotSnapshot) -> None:
        with suppress(TimeoutError, RequestFailed):
            async with asyncio.timeout(_STORE_ANSWER_S):
                stats = await self._pool.cache(model.spec.digest, "stats")
            self._looked[model.pid] = model.heartbeat.steps
            if stats is not None:
                self.metrics.store_says(model.spec.name, model.pid, stats)
