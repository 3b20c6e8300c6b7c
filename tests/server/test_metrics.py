"""/metrics counts what happens, and every number of the dashboard is the metric it names."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from omlx.pool import Pool
from omlx.protocols.admin.overview import Kv, Overview
from omlx.protocols.admin.power import PowerStatus
from omlx.server.telemetry.metrics import Metrics, Names
from omlx.server.telemetry.reading import MetricsReading, between, quantile
from omlx.settings import Settings
from tests.server.local import SCRIPTED, LocalServer, eventually, stocked

GRAFANA = Path(__file__).parents[2] / "contrib" / "grafana" / "omlx.json"


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A server of its own: what it counts is what this module does."""
    root = tmp_path_factory.mktemp("counted")
    keys = root / "keys"
    keys.write_text("ada sk-ada\nlimited sk-limited 1\n")
    settings = Settings(
        models=str(root / "models"), spare_runner=False, max_concurrent_requests=4, api_key_file=str(keys)
    )
    with LocalServer(stocked(root / "models"), settings, SCRIPTED) as server:
        yield server


@pytest.fixture
def http(counted: LocalServer) -> Iterator[httpx.Client]:
    with counted.client() as client:
        client.headers["authorization"] = "Bearer sk-ada"
        yield client


def reading(http: httpx.Client) -> MetricsReading:
    response = http.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    return MetricsReading(text_string_to_metric_families(response.text))


def say(http: httpx.Client, prompt: str, model: str = "plain") -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": prompt}]}
    return http.post("/api/chat", json=body)


def grown(http: httpx.Client, before: MetricsReading, name: str, **labels: str) -> float:
    return reading(http).total(name, **labels) - before.total(name, **labels)


def test_a_request_is_counted_by_dialect_route_status_and_model(http: httpx.Client) -> None:
    before = reading(http)
    assert say(http, "say A B C").status_code == 200
    http.post("/v1/chat/completions", json={"model": "plain", "messages": [{"role": "user", "content": "say A"}]})
    http.post("/api/chat", json={"model": "nope", "messages": []})
    for dialect, route, status, model, count in (
        ("ollama", "/api/chat", "200", "plain:latest", 1),
        ("openai", "/v1/chat/completions", "200", "plain:latest", 1),
        ("ollama", "/api/chat", "404", "", 1),
    ):
        labels = {"dialect": dialect, "route": route, "status": status, "model": model}
        assert grown(http, before, "omlx_http_requests_total", **labels) == count
    assert grown(http, before, "omlx_request_failures_total", dialect="ollama", status="404") == 1
    assert grown(http, before, "omlx_http_request_seconds_count", dialect="openai") == 1


def test_tokens_and_times_are_counted_where_they_happen(http: httpx.Client) -> None:
    before = reading(http)
    say(http, "say A B C")
    say(http, "cached")
    assert grown(http, before, "omlx_prompt_tokens_total", model="plain:latest") == 14
    assert grown(http, before, "omlx_cached_tokens_total", tier="ram") == 3
    assert grown(http, before, "omlx_cached_tokens_total", tier="disk") == 2
    assert grown(http, before, "omlx_kv_lookups_total", outcome="diverged") == 1
    assert grown(http, before, "omlx_time_to_first_token_seconds_count") == 2
    assert grown(http, before, "omlx_inter_token_seconds_count") == 2
    assert grown(http, before, "omlx_queue_seconds_count") == 2
    # The runner's last heartbeat may still be on its way.
    assert eventually(lambda: grown(http, before, "omlx_generated_tokens_total", model="plain:latest") == 4)
    assert eventually(lambda: grown(http, before, "omlx_read_tokens_total", model="plain:latest") == 14)
    assert grown(http, before, "omlx_decoded_rows_total") == 4
    assert grown(http, before, "omlx_decode_places_total") == 4 * 4
    assert grown(http, before, "omlx_guesses_total", accepted="yes") == 4
    assert grown(http, before, "omlx_guesses_total", accepted="no") == 8


def test_the_store_of_a_runner_shows_up(http: httpx.Client) -> None:
    say(http, "say A")
    assert eventually(lambda: reading(http).total("omlx_kv_disk_bytes") == 30_000)
    found = reading(http)
    assert found.total("omlx_kv_ram_bytes", model="plain:latest") == 1000
    assert found.total("omlx_kv_evictions_total", model="plain:latest", tier="disk") == 5
    assert found.total("omlx_kv_faults_total", model="plain:latest", kind="damaged") == 2
    assert found.total("omlx_kv_written_bytes_total", model="plain:latest") == 600


def test_models_that_come_and_go_are_counted(http: httpx.Client) -> None:
    before = reading(http)
    say(http, "say A", model="thinker")
    http.post("/api/generate", json={"model": "thinker", "keep_alive": 0})
    assert grown(http, before, "omlx_model_loads_total", model="thinker:latest", outcome="loaded") == 1
    assert grown(http, before, "omlx_model_load_seconds_count") == 1
    assert eventually(
        lambda: grown(http, before, "omlx_model_unloads_total", model="thinker:latest", reason="asked") == 1
    )
    assert say(http, "crash", model="eyes").status_code == 200
    assert eventually(
        lambda: grown(http, before, "omlx_runner_restarts_total", model="eyes:latest", reason="crashed") == 1
    )


def test_keys_count_by_name_and_refusals_by_rate_too(http: httpx.Client) -> None:
    before = reading(http)
    say(http, "say A")
    assert grown(http, before, "omlx_key_tokens_total", key="ada", kind="prompt") == 7
    assert grown(http, before, "omlx_key_tokens_total", key="ada", kind="generated") == 3
    limited = {"authorization": "Bearer sk-limited"}
    assert [http.get("/api/tags", headers=limited).status_code for _ in range(3)] == [200, 429, 429]
    assert grown(http, before, "omlx_rate_limited_total", key="limited") == 2
    assert "sk-" not in http.get("/metrics").text


def test_what_callers_send_makes_no_labels(http: httpx.Client) -> None:
    before = http.get("/metrics").text
    for number in range(20):
        http.get(f"/nowhere/{number}")
        http.get(f"/v1/models/none-{number}")
        http.post("/api/chat", json={"model": f"none-{number}", "messages": []})
        http.request(f"X{number}", "/api/tags")
    text = http.get("/metrics").text
    assert "none-" not in text
    assert "nowhere" not in text
    # The routes themselves, each with a status it may not have had before.
    assert len(text.splitlines()) - len(before.splitlines()) < 20
    names = Names()
    assert len({names(f"model-{number}") for number in range(500)}) == 65
    assert names("model-0") == "model-0"


def test_nothing_of_it_is_told_without_a_key(http: httpx.Client) -> None:
    for path in ("/metrics", "/api/omlx/overview", "/api/omlx/history", "/api/omlx/requests", "/api/omlx/events"):
        assert http.get(path, headers={"authorization": ""}).status_code == 401


# ---------------------------------------------------------------- the dashboard's numbers
def named_by(found: str) -> str:
    """The metric in a number's documentation."""
    match = re.search(r"omlx_\w+", found)
    assert match, found
    return match[0]


def documented(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Fields with the text below them, up to the next field."""
    source = inspect.getsource(kind)
    pairs = re.findall(r'^    (\w+): [^\n]*\n    """(.*?)"""', source, re.MULTILINE | re.DOTALL)
    return dict(pairs)


def test_every_number_of_the_overview_is_the_metric_it_names(http: httpx.Client) -> None:
    before = reading(http)
    say(http, "say A B C D")
    say(http, "cached")
    assert eventually(lambda: grown(http, before, "omlx_read_tokens_total") == 14)
    now = msgspec.json.decode(http.get("/api/omlx/overview").content, type=Overview)
    metrics = reading(http)
    checked = []
    for part, kind in ((now, Overview), (now.kv, Kv), (now.power, PowerStatus)):
        for field, text in documented(kind).items():
            if "rowth" in text or "uantiles" in text:
                continue
            if part is now.power and (field in ("policy", "watts") or "omlx_" not in text):
                continue
            name, labels = named_by(text), dict(re.findall(r'(\w+)="(\w+)"', text))
            if field == "requests":
                expected = metrics.total(name) - metrics.total(name, model="")
            elif field == "batch_limit":
                expected = max(metrics.by(name, "model").values())
            else:
                expected = metrics.total(name, **labels)
            # Memory moves between two looks, by little.
            tolerance = 0.2 if "memory_used" in field else 0
            assert getattr(part, field) == pytest.approx(expected, rel=tolerance, abs=0), field
            checked.append(field)
    assert len(checked) >= 19
    for row in now.models:
        assert row.size == metrics.total("omlx_model_memory_bytes", model=row.name)
        assert metrics.total("omlx_model_state", model=row.name, state=row.state) == 1


def test_rates_and_shares_are_those_of_the_metrics_since_the_first_sample(
    counted: LocalServer, http: httpx.Client
) -> None:
    oldest = counted.telemetry.samples.oldest()
    assert oldest is not None
    now = msgspec.json.decode(http.get("/api/omlx/overview").content, type=Overview)
    metrics = reading(http)
    first = between(metrics.buckets("omlx_time_to_first_token_seconds"), oldest.first)
    assert now.first_token_p50 == quantile(0.5, first)
    assert now.first_token_p95 == quantile(0.95, first)
    cached = metrics.total("omlx_cached_tokens_total") - oldest.from_ram - oldest.from_disk
    assert now.kv.hit_rate == cached / (metrics.total("omlx_prompt_tokens_total") - oldest.prompt)
    rows, places = metrics.total("omlx_decoded_rows_total"), metrics.total("omlx_decode_places_total")
    assert now.batch_fill == (rows - oldest.rows) / (places - oldest.places)


def test_a_quantile_lies_within_its_bucket() -> None:
    buckets = [(1.0, 2.0), (2.0, 4.0), (4.0, 8.0), (float("inf"), 8.0)]
    assert quantile(0.5, buckets) == 2.0
    assert quantile(0.75, buckets) == 3.0
    assert quantile(0.1, buckets) == 0.4
    assert quantile(0.5, []) is None
    assert quantile(0.5, [(1.0, 0.0), (float("inf"), 0.0)]) is None
    assert quantile(0.99, [(1.0, 0.0), (float("inf"), 5.0)]) == 1.0


def test_every_metric_is_in_the_docs(tmp_path: Path) -> None:
    text = (GRAFANA.parents[2] / "docs" / "monitoring.md").read_text("utf-8")
    named = set(re.findall(r"`(omlx_\w+)`", text))
    families = Metrics(Pool(Settings(models=str(tmp_path), spare_runner=False))).registry.collect()
    assert {family.name + ("_total" if family.type == "counter" else "") for family in families} == named


def test_every_query_of_the_grafana_dashboard_names_metrics_that_exist(tmp_path: Path) -> None:
    pool = Pool(Settings(models=str(tmp_path), spare_runner=False))
    known = set()
    for family in Metrics(pool).registry.collect():
        known |= {family.name, *(family.name + end for end in ("_total", "_bucket", "_sum", "_count"))}
    dashboard: dict[str, Any] = json.loads(GRAFANA.read_text("utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    queries += [one["query"]["query"] for one in dashboard["templating"]["list"] if one["type"] == "query"]
    assert len(queries) > 15
    for query in queries:
        names = re.findall(r"omlx_\w+", query)
        assert names, query
        assert set(names) <= known, query
