"""OpenTelemetry: one tree of spans per request to a model, and nothing where nobody asked for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from omlx.server.telemetry.traces import Traces, open_traces
from omlx.settings import SettingError, Settings
from tests.server.local import SCRIPTED, LocalServer, eventually, stocked

CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[tuple[LocalServer, InMemorySpanExporter]]:
    exporter = InMemorySpanExporter()
    with LocalServer(stocked(tmp_path), Settings(models=str(tmp_path), spare_runner=False), SCRIPTED) as server:
        server.telemetry.traces = Traces(exporter)
        yield server, exporter


def spans(server: LocalServer, exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    assert server.telemetry.traces is not None
    server.telemetry.traces._provider.force_flush()
    return {span.name: span for span in exporter.get_finished_spans()}


def say(http: httpx.Client, prompt: str) -> None:
    body = {"model": "plain", "messages": [{"role": "user", "content": prompt}], "stream": False}
    http.post("/api/chat", json=body, headers={"traceparent": CALLER, "x-request-id": "job-1"})


def test_a_request_is_one_tree_below_the_callers_span(traced: tuple[LocalServer, InMemorySpanExporter]) -> None:
    server, exporter = traced
    with server.client() as http:
        say(http, "cached")
        http.get("/api/tags")
    assert eventually(lambda: len(spans(server, exporter)) == 5)
    found = spans(server, exporter)
    root = found.pop("POST /api/chat")
    assert list(found) == ["load", "queue", "prefill", "decode"]
    assert root.parent is not None
    assert root.context is not None
    assert (f"{root.context.trace_id:032x}", f"{root.parent.span_id:016x}") == tuple(CALLER.split("-")[1:3])
    attributes = dict(root.attributes or {})
    assert attributes["omlx.request_id"] == "job-1"
    assert attributes["gen_ai.request.model"] == "plain:latest"
    assert (attributes["gen_ai.usage.input_tokens"], attributes["omlx.cached_tokens"]) == (7, 5)
    edges = [root.start_time]
    for span in found.values():
        assert span.parent is not None
        assert span.parent.span_id == root.context.span_id
        edges += [span.start_time, span.end_time]
    edges.append(root.end_time)
    assert edges == sorted(edges, key=lambda edge: edge or 0)


def test_an_error_is_told_and_no_text_of_the_prompt(traced: tuple[LocalServer, InMemorySpanExporter]) -> None:
    server, exporter = traced
    with server.client() as http:
        say(http, "fail too_long it is too long")
    assert eventually(lambda: "POST /api/chat" in spans(server, exporter))
    found = spans(server, exporter)
    assert found["POST /api/chat"].status.description == "it is too long"
    assert list(found) == ["load", "POST /api/chat"]


def test_without_an_endpoint_there_is_nothing(tmp_path: Path) -> None:
    assert open_traces(Settings(models=str(tmp_path))) is None


def test_missing_packages_stop_the_start_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(SettingError, match=r"pip install \"omlx\[otel\]\""):
        open_traces(Settings(otel_endpoint="http://127.0.0.1:4318/v1/traces"))
