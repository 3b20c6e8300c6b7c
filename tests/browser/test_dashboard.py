"""The dashboard in a real browser: it shows what the metrics say, does what its buttons say, and anybody can use it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from omlx_registry import Registry
from prometheus_client.parser import text_string_to_metric_families

from omlx.server.telemetry.reading import MetricsReading
from omlx.settings import Settings
from tests.browser.conftest import PATIENCE_MS
from tests.server.local import SCRIPTED, LocalServer, ScriptedSource, eventually, stocked
from tests.support.tiny import DATA

PAGES = ("", "models", "models/plain%3Alatest", "requests", "chat")


@pytest.fixture(scope="module")
def server(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    root = tmp_path_factory.mktemp("models")
    settings = Settings(models=str(root), spare_runner=False, max_loaded_models=8, max_concurrent_requests=4)
    with LocalServer(stocked(root), settings, SCRIPTED) as local:
        yield local


@pytest.fixture
def http(server: LocalServer) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.fixture
def page(browser: Any, server: LocalServer) -> Iterator[Any]:
    """A page that is open; it must not complain, and must ask nobody but its server."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(PATIENCE_MS)
    opened = context.new_page()
    complaints: list[str] = []
    # Chromium says so of every answer above 399, also where a test wants one.
    usual = "Failed to load resource"
    opened.on(
        "console",
        lambda message: (
            complaints.append(message.text) if message.type == "error" and not message.text.startswith(usual) else None
        ),
    )
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("request", lambda asked: None if asked.url.startswith(server.url) else complaints.append(asked.url))
    opened.goto(server.url)
    opened.get_by_text("Live", exact=True).wait_for()
    yield opened
    context.close()
    assert complaints == []


def say(http: httpx.Client, prompt: str, model: str = "plain") -> None:
    body = {"model": model, "messages": [{"role": "user", "content": prompt}], "stream": False}
    http.post("/api/chat", json=body)


def go(page: Any, part: str) -> None:
    page.evaluate("place => { location.hash = place; }", f"#/{part}")


def test_every_number_on_the_page_is_the_metric_it_names(page: Any, http: httpx.Client) -> None:
    say(http, "cached")
    say(http, "say A B C")

    def shown() -> dict[str, str]:
        values: dict[str, str] = page.evaluate(
            "Object.fromEntries([...document.querySelectorAll('[data-metric]')]"
            ".map((node) => [node.dataset.metric, node.dataset.value]))"
        )
        return values

    def wrong() -> list[str]:
        metrics = MetricsReading(text_string_to_metric_families(http.get("/metrics").text))
        overview = http.get("/api/omlx/overview").json()
        quantiles = {"0.5": overview["first_token_p50"], "0.95": overview["first_token_p95"]}
        shares = {"cached": overview["kv"]["hit_rate"], "decoded": overview["batch_fill"]}
        found = []
        for name, value in shown().items():
            plain = re.fullmatch(r'(omlx_\w+)(?:\{tier="(\w+)"\})?', name)
            if name == "omlx_http_requests_total":
                expected = metrics.total(name) - metrics.total(name, model="")
            elif plain:
                expected = metrics.total(plain[1], **({"tier": plain[2]} if plain[2] else {}))
            elif name.startswith("quantile("):
                expected = quantiles[re.findall(r"[\d.]+", name)[0]]
            elif name.startswith("rate("):
                continue  # made of two looks at the metric whose total stands below it
            else:
                expected = shares[re.findall(r"omlx_([a-z]+)", name)[0]]
            about = 0.3 if "memory_used" in name else 1e-9
            if not value or float(value) != pytest.approx(expected, rel=about):  # the page may still be filling in
                found.append(f"{name}: {value}, not {expected}")
        return found

    page.get_by_text("14 tokens so far").or_(page.locator('[data-metric="omlx_prompt_tokens_total"]')).first.wait_for()
    assert eventually(lambda: len(shown()) >= 18 and not wrong()), wrong()


def test_a_model_is_loaded_pinned_and_unloaded(page: Any, http: httpx.Client) -> None:
    go(page, "models")
    page.get_by_role("row", name=re.compile("^thinker:latest")).get_by_role("button", name="Load").click()
    go(page, "")
    row = page.locator("#loaded").get_by_role("row", name=re.compile("^thinker:latest"))
    row.get_by_text("ready", exact=True).wait_for()
    row.get_by_role("button", name="Pin").click()
    row.get_by_text("pinned").wait_for()
    (pinned,) = http.get("/api/omlx/status").json()["pinned"]
    assert pinned.startswith("thinker")
    row.get_by_role("button", name="Unpin").click()
    row.get_by_label("How long thinker:latest stays").select_option("1h")
    row.locator("[data-name=Stays]", has_text=re.compile("59 min|1 h")).wait_for()
    row.get_by_role("button", name="Unload").click()
    row.wait_for(state="detached")


def test_deleting_asks_first(page: Any, http: httpx.Client) -> None:
    http.post("/api/copy", json={"source": "plain", "destination": "spare"})
    go(page, "models/spare%3Alatest")
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    assert "spare:latest" in http.get("/api/tags").text
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    assert eventually(lambda: "spare:latest" not in http.get("/api/tags").text)


def test_a_chat_streams_and_stops(page: Any, server: LocalServer) -> None:
    go(page, "chat")
    page.locator("#chat-model").select_option("plain:latest")
    box = page.get_by_label("Your message")
    box.fill("say Hello <b>there</b>")
    box.press("Enter")
    answer = page.locator(".turn.assistant").first
    answer.get_by_text("Hello<b>there</b>").wait_for()
    answer.get_by_text(re.compile("3 tokens in")).wait_for()
    box.fill("begin")
    box.press("Enter")
    page.locator(".turn.assistant").nth(1).get_by_text("begun").wait_for()
    assert eventually(lambda: server.running() == 1)
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("stopped").wait_for()
    assert eventually(lambda: server.running() == 0)


def test_a_chat_says_how_far_a_long_prompt_is_read(page: Any, server: LocalServer) -> None:
    go(page, "chat")
    page.locator("#chat-model").select_option("plain:latest")
    page.get_by_label("Your message").fill("read 2100 5000")
    page.get_by_label("Your message").press("Enter")
    page.locator(".turn.assistant").get_by_text("Reading the prompt … 42 %").wait_for()
    go(page, "requests")
    page.locator("#journal").get_by_text("reading", exact=True).wait_for()
    go(page, "chat")
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("stopped").wait_for()
    assert page.get_by_text("Reading the prompt").count() == 0
    assert eventually(lambda: server.running() == 0)


def test_an_error_in_the_chat_keeps_the_text_and_leaves_no_trace_in_the_history(page: Any) -> None:
    go(page, "chat")
    page.locator("#chat-model").select_option("thinker:latest")
    box = page.get_by_label("Your message")
    box.fill("say One")
    box.press("Enter")
    page.get_by_text(re.compile("3 tokens in")).wait_for()
    box.fill("fail internal the model failed")
    box.press("Enter")
    page.locator("#talk").get_by_text("the model failed", exact=True).wait_for()
    assert box.input_value() == "fail internal the model failed"
    page.get_by_role("button", name="Retry").click()
    page.get_by_role("button", name="Retry").wait_for()
    assert page.locator(".turn").count() == 4, "what failed is shown once"
    box.fill("request ")
    box.press("Enter")
    page.get_by_text(re.compile("3 tokens in")).nth(1).wait_for()
    told = json.loads(page.locator(".turn.assistant").nth(1).locator("div").nth(1).inner_text())
    assert [(turn["role"], turn["content"]) for turn in told["messages"]] == [
        ("user", "say One"), ("assistant", "One"), ("user", "request")]  # fmt: skip
    assert page.get_by_text("the model failed").count() == 0


def test_models_made_elsewhere_appear_and_without_any_the_chat_leads_to_models(browser: Any, tmp_path: Path) -> None:
    registry = Registry(tmp_path / "models", [ScriptedSource()])
    settings = Settings(models=str(tmp_path / "models"), spare_runner=False)
    with LocalServer(registry, settings, SCRIPTED) as empty, empty.client() as http:
        context = browser.new_context()
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.goto(f"{empty.url}/#/chat")
        page.get_by_text("There is no model to talk to yet.").wait_for()
        assert page.get_by_role("button", name="Send").is_disabled()
        page.get_by_role("link", name="Pull one").click()
        page.get_by_role("heading", name="Models", level=1).wait_for()
        page.get_by_text("There is no model yet.").wait_for()
        files = []
        for file in (DATA / "taught-llama").iterdir():
            data = file.read_bytes()
            digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
            http.post(f"/api/blobs/{digest}", content=data).raise_for_status()
            files.append((file.name, digest))
        made = http.post("/api/create", json={"model": "made", "files": dict(files), "stream": False})
        assert made.json()["status"] == "success"
        page.locator("#installed").get_by_text("made:latest").wait_for()
        go(page, "chat")
        assert page.locator("#chat-model").input_value() == "made:latest"
        assert page.get_by_role("button", name="Send").is_enabled()
        context.close()


def test_normal_answers_are_not_red_and_the_name_asked_for_is_shown(page: Any, http: httpx.Client) -> None:
    say(http, "say A", model="nobody:7b")
    http.head(f"/api/blobs/sha256:{'0' * 64}")
    http.post("/v1/chat/completions", json={"model": "early:1b", "messages": "none"})
    http.post("/v1/chat/completions", content=b"{")
    say(http, "fail internal oh dear")
    go(page, "requests")
    page.locator("#journal tr", has_text="nobody:7b").get_by_text("404", exact=True).wait_for()
    page.locator("#journal tr", has_text="500").first.wait_for()
    shown = page.locator("#journal tr", has_text="400").get_by_role("button").all_inner_texts()
    assert sorted(shown) == ["early:1b", "–"]
    page.set_viewport_size({"width": 390, "height": 844})  # where the column of routes has no room
    assert page.get_by_role("button", name="– /v1/chat/completions").is_visible()
    red = page.locator("#journal .badge.bad").all_inner_texts()
    assert red and "404" not in red


def test_refused_requests_are_counted_and_advised_about(page: Any, http: httpx.Client) -> None:
    page.wait_for_timeout(5500)  # a sample from before, to count from
    for _ in range(2):
        say(http, "fail busy server busy, please try again")
    page.locator("#advice").get_by_text(re.compile(r"[2-9]\d* requests were answered with 503")).wait_for()
    page.locator("#tiles").get_by_text(re.compile(r"answered 503 in the last hour")).wait_for()
    note = page.locator("#memory-note")
    note.get_by_text(re.compile("Memory in use: .* by the server")).wait_for()


def test_a_model_offers_load_or_unload(page: Any, http: httpx.Client) -> None:
    go(page, "models/eyes%3Alatest")
    acts = page.locator("#model-actions")
    acts.get_by_role("button", name="Load", exact=True).click()
    acts.get_by_role("button", name="Unload").wait_for()
    assert acts.get_by_role("button", name="Load", exact=True).count() == 0
    acts.get_by_role("button", name="Unload").click()
    acts.get_by_role("button", name="Load", exact=True).wait_for()
    assert acts.get_by_role("button", name="Unload").count() == 0


def test_a_failed_pull_stays_until_it_is_dismissed(page: Any) -> None:
    go(page, "models")
    for _ in range(2):
        page.get_by_label("Pull a model").fill("remote-broken")
        page.get_by_label("Pull a model").press("Enter")
        page.locator("#models .pulling.failed").wait_for()
    card = page.locator("#models .pulling", has_text="remote-broken")
    assert card.count() == 1, "one card a model"
    card.get_by_role("alert").get_by_text("unauthorized: access denied").wait_for()
    page.reload()
    card.wait_for()
    before = card.get_attribute("data-key")
    card.get_by_role("button", name="Retry").click()
    page.locator(f"#models .pulling.failed:not([data-key='{before}'])").wait_for()
    assert card.count() == 1
    card.get_by_role("button", name="Dismiss").click()
    card.wait_for(state="detached")


def test_a_request_takes_two_lines_on_a_phone(browser: Any, server: LocalServer, http: httpx.Client) -> None:
    say(http, "cached")
    context = browser.new_context(viewport={"width": 390, "height": 844})
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.goto(f"{server.url}/#/requests")
    row = page.locator("#journal tbody tr").first
    row.wait_for()
    shown = row.evaluate(
        "row => [...row.children].filter((cell) => cell.getClientRects().length)"
        ".map((cell) => Math.round(cell.getBoundingClientRect().top))"
    )
    assert len(shown) == 4 and len({top // 14 for top in shown}) <= 3 and row.bounding_box()["height"] < 70
    context.close()


def test_the_inspector_says_why(page: Any, http: httpx.Client) -> None:
    say(http, "cached")
    go(page, "requests")
    page.locator("#journal tr", has_text="71 % cached").first.get_by_role("button").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("5 of 7 prompt tokens came from the cache, 2 of them from SSD").wait_for()
    dialog.get_by_text("at token 5").wait_for()
    page.keyboard.press("Escape")
    assert eventually(lambda: not dialog.is_visible())


def test_a_pull_shows_its_progress_and_can_be_cancelled(page: Any) -> None:
    go(page, "models")
    page.get_by_label("Pull a model").fill("remote-endless")
    page.get_by_label("Pull a model").press("Enter")
    pull = page.locator("#models .pulling")
    pull.get_by_text("100 B of 100 B (100 %)").wait_for()
    pull.get_by_role("button", name="Cancel").click()
    pull.get_by_text("cancelled", exact=True).wait_for()


def test_the_keyboard_reaches_everything(page: Any) -> None:
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.reload()
    page.get_by_text("Live", exact=True).wait_for()
    for _ in range(5):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Requests", level=1).wait_for()
    assert page.get_by_role("link", name="Requests").get_attribute("aria-current") == "page"


def test_it_is_accessible_and_fits_a_phone(browser: Any, server: LocalServer, http: httpx.Client) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe: `make test` installs it")
    say(http, "cached")
    context = browser.new_context(viewport={"width": 390, "height": 844})
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.goto(server.url)
    page.get_by_text("Live", exact=True).wait_for()
    for part in PAGES:
        go(page, part)
        page.wait_for_timeout(300)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            found = axe.Axe().run(page).response["violations"]
            serious = [
                (one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in {"serious", "critical"}
            ]
            assert serious == [], (part, scheme)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), part
    context.close()


def test_it_asks_for_the_key_where_one_is_set(browser: Any, tmp_path: Path) -> None:
    settings = Settings(models=str(tmp_path), spare_runner=False, api_key=["open-sesame"])
    with LocalServer(stocked(tmp_path), settings, SCRIPTED) as guarded:
        context = browser.new_context()
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.goto(guarded.url)
        page.get_by_label("API key").fill("wrong")
        page.keyboard.press("Enter")
        page.get_by_label("API key").fill("open-sesame")
        page.keyboard.press("Enter")
        page.get_by_text("Live", exact=True).wait_for()
        assert not page.get_by_role("dialog").is_visible()
        context.close()
