"""The dashboard: who gets the page, what may be asked without a key or from elsewhere, and what its routes tell."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from omlx.server.telemetry.samples import EVERY_S
from omlx.settings import Settings
from tests.server.local import SCRIPTED, LocalServer, ScriptedSource, eventually, stocked

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
STATIC = Path(__file__).parents[2] / "omlx" / "server" / "dashboard" / "static"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    root = tmp_path_factory.mktemp("guarded")
    settings = Settings(models=str(root), spare_runner=False, api_key=["first"])
    with LocalServer(stocked(root), settings, SCRIPTED) as server, server.client() as client:
        yield client


def say(http: httpx.Client, prompt: str, **more: Any) -> httpx.Response:
    body = {"model": "plain", "messages": [{"role": "user", "content": prompt}], "stream": False, **more}
    return http.post("/api/chat", json=body)


def events(http: httpx.Client, count: int) -> list[tuple[str, Any]]:
    """The first server-sent events."""
    found: list[tuple[str, Any]] = []
    name = ""
    with http.stream("GET", "/api/omlx/events") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        for line in response.iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                found.append((name, json.loads(line.removeprefix("data: "))))
                if len(found) == count:
                    break
    return found


# ---------------------------------------------------------------- the page
def test_a_browser_gets_the_page_and_a_client_what_it_always_got(http: httpx.Client) -> None:
    page = http.get("/", headers={"accept": BROWSER})
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "Accept" in page.headers["vary"]
    for accept in ("*/*", "application/json", ""):
        response = http.get("/", headers={"accept": accept})
        assert response.text == "Ollama is running"
        assert "Accept" in response.headers["vary"]
    assert http.head("/").headers["content-type"].startswith("text/plain")


def test_the_page_may_load_nothing_from_elsewhere(http: httpx.Client) -> None:
    page = http.get("/", headers={"accept": BROWSER})
    policy = dict(part.split(" ", 1) for part in page.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert {policy[kind] for kind in ("script-src", "style-src", "img-src", "connect-src")} == {"'self'"}
    assert policy["frame-ancestors"] == "'none'"
    assert page.headers["x-content-type-options"] == "nosniff"
    for path in STATIC.iterdir():
        text = path.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//cdn|\bstyle=|<script>|onclick=\"", text), path.name


def test_its_files_come_with_a_tag_and_are_not_sent_twice(http: httpx.Client) -> None:
    page = http.get("/", headers={"accept": BROWSER}).text
    names = re.findall(r'(?:src|href)="(/dashboard/[^"]+)"', page)
    assert len(names) >= 3
    for name in names:
        first = http.get(name)
        assert first.status_code == 200
        again = http.get(name, headers={"if-none-match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    for path in STATIC.glob("*.js"):
        for module in re.findall(r'from "\./([^"]+)"', path.read_text("utf-8")):
            assert http.get(f"/dashboard/{module}").headers["content-type"].startswith("text/javascript")
    for name in ("nothing.js", "..%2f__init__.py", "__init__.py"):
        assert http.get(f"/dashboard/{name}").status_code == 404


def test_the_page_needs_no_key_and_what_it_shows_does(guarded: httpx.Client) -> None:
    assert guarded.get("/", headers={"accept": BROWSER}).status_code == 200
    assert guarded.get("/dashboard/main.js").status_code == 200
    assert guarded.get("/api/omlx/overview").status_code == 401
    assert guarded.post("/api/omlx/pulls", json={"model": "x"}).status_code == 401
    assert guarded.delete("/api/omlx/pulls/1").status_code == 401
    assert guarded.get("/api/omlx/overview", headers={"authorization": "Bearer first"}).status_code == 200


@pytest.mark.parametrize("origin", ["http://localhost:3000", "http://127.0.0.1:1", "app://obsidian.md"])
def test_our_own_routes_change_nothing_for_another_origin(http: httpx.Client, origin: str) -> None:
    for method, path in (
        ("POST", "/api/omlx/pulls"),
        ("DELETE", "/api/omlx/pulls/1"),
        ("POST", "/api/omlx/pin"),
        ("POST", "/api/omlx/cache/clear"),
    ):
        assert http.request(method, path, json={}, headers={"origin": origin}).status_code == 403
    # Ollama's own routes keep Ollama's rules.
    assert http.post("/api/show", json={"model": "plain"}, headers={"origin": origin}).status_code == 200
    own = str(http.base_url).rstrip("/")
    assert http.post("/api/omlx/pin", json={"model": "nope"}, headers={"origin": own}).status_code == 404


# ---------------------------------------------------------------- what it shows
def test_the_inspector_tells_where_the_time_went_and_why_it_missed(http: httpx.Client) -> None:
    name = say(http, "cached").headers["x-request-id"]

    def row() -> dict[str, Any]:
        rows = http.get("/api/omlx/requests").json()["requests"]
        return next((row for row in rows if row["id"] == name and row["stage"] == "done"), {})

    assert eventually(lambda: bool(row()))
    found = row()
    assert (found["route"], found["dialect"], found["model"]) == ("/api/chat", "ollama", "plain:latest")
    assert (found["prompt_tokens"], found["cached_tokens"], found["disk_tokens"]) == (7, 5, 2)
    assert (found["cache_reason"], found["cache_message"]) == ("diverged", "at token 5")
    assert found["prefill"] == 5e-07
    assert 0 < found["first_token"] <= found["seconds"]
    assert found["error"] == ""


def test_a_failure_and_a_client_that_left_are_told(http: httpx.Client) -> None:
    failed = say(http, "fail too_long the prompt is too long").headers["x-request-id"]
    body = {"model": "plain", "messages": [{"role": "user", "content": "begin"}]}
    with http.stream("POST", "/api/chat", json=body) as response:
        left = response.headers["x-request-id"]
        lines = response.iter_lines()  # held: to drop it is to leave
        next(lines)

        def running() -> dict[str, Any]:
            rows = http.get("/api/omlx/requests").json()["requests"]
            return next((row for row in rows if row["id"] == left), {})

        assert running()["stage"] == "writing"

    def errors() -> dict[str, str]:
        return {row["id"]: row["error"] for row in http.get("/api/omlx/requests").json()["requests"]}

    assert eventually(lambda: errors().get(left) == "the client left")
    assert errors()[failed] == "the prompt is too long"


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/api/chat", {"model": "plain", "messages": "none"}, "plain"),
        ("/v1/chat/completions", {"model": "plain", "messages": 5}, "plain"),
        ("/v1/messages", {"model": "plain"}, "plain"),
        ("/v1/responses", {"model": "plain", "tool_choice": 7, "input": "x"}, "plain"),
        ("/api/chat", {"model": ["plain"]}, ""),
        ("/api/chat", [], ""),
    ],
)
def test_a_request_that_is_refused_early_is_listed_with_the_model_it_names(
    http: httpx.Client, path: str, body: Any, named: str
) -> None:
    refused = http.post(path, json=body, headers={"x-request-id": f"early-{path}-{named}"})
    assert refused.status_code == 400, refused.text
    rows = http.get("/api/omlx/requests").json()["requests"]
    assert (rows[0]["route"], rows[0]["status"], rows[0]["model"]) == (path, 400, named)


def test_events_tell_the_overview_and_the_requests(http: httpx.Client) -> None:
    say(http, "say A")
    found = events(http, 2)
    assert [name for name, _ in found] == ["overview", "requests"]
    overview, requests = found[0][1], found[1][1]["requests"]
    assert overview["models"][0]["state"] in {"ready", "leaving", "loading"}
    assert overview["requests"] >= 1
    assert requests == sorted(requests, key=lambda row: -row["number"])


def test_a_model_that_comes_or_goes_is_told_before_the_next_sample(own_server: LocalServer) -> None:
    told: list[list[str]] = []

    def listen() -> None:
        with own_server.client() as http, http.stream("GET", "/api/omlx/events") as response:
            lines = response.iter_lines()
            for line in lines:
                if line == "event: overview":
                    models = json.loads(next(lines).removeprefix("data: "))["models"]
                    told.append([model["state"] for model in models])
                    if len(told) > 1 and told[-1] == []:
                        break

    listener = threading.Thread(target=listen)
    listener.start()
    with own_server.client() as http:
        assert eventually(lambda: told == [[]])
        http.post("/api/generate", json={"model": "plain"})
        assert eventually(lambda: told[-1] == ["ready"], timeout_s=EVERY_S / 2)
        http.post("/api/generate", json={"model": "plain", "keep_alive": 0})
        listener.join(EVERY_S / 2)
    assert told[-1] == []


def test_history_is_as_long_in_every_line(own_server: LocalServer) -> None:
    with own_server.client() as http:
        for _ in range(3):
            own_server.telemetry.samples.keep(own_server.telemetry.samples.kept[0])
        found = http.get("/api/omlx/history").json()
    assert {len(values) for values in found.values()} == {3}


# ---------------------------------------------------------------- pulls
def pulls(http: httpx.Client) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = http.get("/api/omlx/overview").json()["pulls"]
    return rows


def test_a_pull_of_the_page_goes_on_by_itself_and_can_be_cancelled(own_server: LocalServer) -> None:
    with own_server.client() as http:
        number = http.post("/api/omlx/pulls", json={"model": "remote-endless"}).json()["number"]
        assert eventually(lambda: pulls(http)[0]["completed"] == 100)
        row = pulls(http)[0]
        assert (row["number"], row["name"], row["state"], row["total"]) == (number, "remote-endless", "running", 100)
        assert http.delete(f"/api/omlx/pulls/{number}").status_code == 200
        assert eventually(lambda: pulls(http)[0]["state"] == "cancelled")
        assert "remote-endless" not in ScriptedSource.pulling
        assert http.delete(f"/api/omlx/pulls/{number}").status_code == 200  # dismissed
        assert pulls(http) == []
        assert http.delete(f"/api/omlx/pulls/{number}").status_code == 404
        assert http.post("/api/omlx/pulls", json={"model": "remote-broken"}).status_code == 200
        assert eventually(lambda: pulls(http)[0]["state"] == "failed")
        assert "unauthorized" in pulls(http)[0]["error"]
        # One entry a model, however its name is written; a failed one is replaced by the next try.
        assert http.post("/api/omlx/pulls", json={"model": "Remote-Broken:latest"}).status_code == 200
        assert eventually(lambda: [pull["state"] for pull in pulls(http)] == ["failed"])


def test_a_clients_pull_is_listed_and_ends_with_an_error_when_cancelled(own_server: LocalServer) -> None:
    with own_server.client() as http, own_server.client() as other:
        with http.stream("POST", "/api/pull", json={"model": "remote-endless"}) as response:
            lines = response.iter_lines()
            next(lines)
            number = pulls(other)[0]["number"]
            assert other.delete(f"/api/omlx/pulls/{number}").status_code == 200
            *_, last = lines
        assert json.loads(last) == {"error": "the pull of remote-endless was cancelled"}
        with http.stream("POST", "/api/pull", json={"model": "remote-endless"}) as response:
            next(response.iter_lines())
        assert eventually(lambda: pulls(other)[0]["state"] == "cancelled")
        assert "remote-endless" not in ScriptedSource.pulling


def test_more_background_pulls_than_there_may_be_are_refused(own_server: LocalServer) -> None:
    with own_server.client() as http:
        answers = [http.post("/api/omlx/pulls", json={"model": "remote-endless"}) for _ in range(17)]
        assert [answer.status_code for answer in answers] == [200] * 16 + [500]
        assert "16 pulls are running already" in answers[-1].json()["error"]
