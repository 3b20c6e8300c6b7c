"""OpenTelemetry traces: of each request to a model one tree of spans, made of its record once it has ended.

Off unless `otel_endpoint` is set; the packages come with the extra `otel` and are imported only then.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from omlx import __version__
from omlx.record import RequestRecord
from omlx.settings import SettingError, Settings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

_NS = 1_000_000_000


class Traces:
    """Sends spans to `exporter` from a thread of its own: neither a slow nor a dead collector holds up a request."""

    def __init__(self, exporter: SpanExporter) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        resource = Resource.create({"service.name": "omlx", "service.version": __version__})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("omlx")

    def tell(self, record: RequestRecord) -> None:
        """The span of a request that has ended, below the caller's own where it named one, and its stages' below it."""
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        def moment(monotonic: float) -> int:
            return int((record.arrived_at + monotonic - record.arrived) * _NS)

        above = TraceContextTextMapPropagator().extract({"traceparent": record.traceparent})
        root = self._tracer.start_span(
            f"{record.method} {record.route}", above, SpanKind.SERVER, start_time=moment(record.arrived),
            attributes={
                "http.request.method": record.method,
                "http.route": record.route,
                "http.response.status_code": record.status,
                "omlx.request_id": record.id,
                "omlx.prompting": record.dialect,
                "gen_ai.request.model": record.model,
                "gen_ai.usage.input_tokens": record.prompt_tokens,
                "gen_ai.usage.output_tokens": record.completion_tokens,
                "omlx.cached_tokens": record.cached_tokens,
            },
        )  # fmt: skip
        if record.error:
            root.set_status(Status(StatusCode.ERROR, record.error))
        below = set_span_in_context(root)
        for name, start, end in stages(record):
            self._tracer.start_span(name, below, start_time=moment(start)).end(moment(end))
        root.end(moment(record.ended))

    def close(self) -> None:
        """Send what is left, within seconds."""
        self._provider.shutdown()


def stages(record: RequestRecord) -> list[tuple[str, float, float]]:
    """Name, start and end (monotonic s) of what a request went through; those that never began are missing."""
    spans = [("load", record.asked, record.acquired or record.ended)]
    if record.generations:
        start = record.acquired
        for name, seconds in (("queue", record.queue_s), ("prefill", record.prefill_s), ("decode", record.decode_s)):
            end = min(start + seconds, record.ended)
            spans.append((name, start, end))
            start = end
    return spans


def open_traces(settings: Settings) -> Traces | None:
    """None where nobody asked for traces. Raises SettingError where the packages are missing."""
    if not settings.otel_endpoint:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        text = 'otel_endpoint is set, but OpenTelemetry is not installed: pip install "omlx[otel]"'
        raise SettingError(text) from None
    # A collector that does not answer is worth a line, not a traceback each time.
    logging.getLogger("opentelemetry").setLevel(logging.ERROR)
    return Traces(OTLPSpanExporter(endpoint=settings.otel_endpoint))
