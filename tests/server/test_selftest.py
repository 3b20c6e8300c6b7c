"""`omlx selftest`: a sound model passes; what does not hold is found, switched off and said, for that model only."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from omlx_registry import Registry

from omlx.client import Client, ClientError
from omlx.messages.selftest import Check, SelfTestResponse
from omlx.selftest.run import run
from omlx.settings import Settings
from tests.cli.conftest import run_omlx
from tests.server.local import LocalServer
from tests.support.lessons import WEATHER_TOOL, lesson
from tests.support.tiny import DATA

LOSSY = (sys.executable, str(Path(__file__).parents[1] / "runner" / "lossy_runner.py"))
HELLO = {"model": "taught", "messages": lesson("hello").messages, "stream": False, "options": {"temperature": 0}}


def serving(root: Path, *command: str) -> LocalServer:
    registry = Registry(root / "models", [])
    if not registry.list():
        registry.add_model_folder("taught", DATA / "taught-qwen3", transfer="copy")
    settings = Settings(models=str(root / "models"), paged_ssd_cache_dir=str(root / "kv"), spare_runner=False)
    return LocalServer(registry, settings, command) if command else LocalServer(registry, settings)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    with serving(tmp_path_factory.mktemp("selftest")) as running:
        yield running


def selftest(server: LocalServer, model: str = "taught") -> dict[str, Check]:
    async def test() -> SelfTestResponse:
        async with Client(server.url) as client:
            return await run(client, model, lambda check: None)

    found = asyncio.run(test()).result
    assert found is not None
    return {check.name: check for check in found.checks}


def keep(http: httpx.Client, *checks: tuple[str, str], model: str = "taught") -> dict[str, Any]:
    told = [{"name": name, "outcome": outcome, "detail": "because\nof this"} for name, outcome in checks]
    answer: dict[str, Any] = http.post("/api/omlx/selftest", json={"model": model, "checks": told}).json()
    return answer


@pytest.mark.slow
def test_a_sound_model_passes_on_the_command_line(server: LocalServer) -> None:
    done = run_omlx("selftest", "taught", host=server.url, timeout=150)
    found = {line.split()[1]: line.split()[0] for line in done.out.splitlines() if line[:7] in ("passed ", "failed ")}
    # The tiny model knows its lessons and nothing else: the needle is beyond it, and that switches nothing off.
    assert found == {
        **dict.fromkeys(("restore", "batch", "seed", "tools", "schema"), "passed"), "needle": found["needle"],
    }  # fmt: skip
    last = "The self-test passed."
    if found["needle"] == "failed":
        last = "Nothing is switched off: no feature rests on needle."
    assert (done.code, done.out.splitlines()[-1]) == (0, last)
    # What takes long is named before it begins.
    assert done.err.splitlines() == ["loading …", *(f"{name} …" for name in found)]


@pytest.mark.slow
def test_damaged_arithmetic_is_found_and_done_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), serving(tmp_path, *LOSSY, "restores,joins") as server:
        found = selftest(server)
        assert (found["restore"].outcome, found["batch"].outcome) == ("failed", "failed")
        with server.client() as http:
            for _ in range(2):
                answer = http.post("/api/chat", json=HELLO).json()
                assert answer["message"]["content"] == lesson("hello").content
                assert answer.get("cached_tokens", 0) == 0
            shown = http.post("/api/show", json={"model": "taught"}).json()
            assert [note.split()[0] for note in shown["notes"]] == ["cache", "batching"]
            (status,) = http.get("/api/omlx/status").json()["models"]
            assert status["off"] == ["batching", "cache"]
        assert "taught:latest: cache is off since its self-test failed" in caplog.text
        assert "Self-test" in run_omlx("show", "taught", host=server.url).out
        assert "batching, cache" in run_omlx("ps", "--verbose", host=server.url).out
    with serving(tmp_path) as again, again.client() as http:  # it is still known after a restart
        assert len(http.post("/api/show", json={"model": "taught"}).json()["notes"]) == 2


def test_what_the_load_checks_find_is_done_without_said_and_kept(tmp_path: Path) -> None:
    with serving(tmp_path, *LOSSY, "restores,joins,short") as server, server.client() as http:
        for _ in range(2):
            answer = http.post("/api/chat", json=HELLO).json()
            assert answer["message"]["content"] == lesson("hello").content
            assert answer.get("cached_tokens", 0) == 0
        notes = http.post("/api/show", json={"model": "taught"}).json()["notes"]
        assert [note.split(":")[0] for note in notes] == ["batching is off", "joint prefill is off", "cache is off"]
        assert all("omlx selftest --clear MODEL" in note for note in notes)
        assert http.get("/api/omlx/status").json()["models"][0]["off"] == ["batching", "cache", "joint prefill"]
        assert "batching, cache, joint prefill" in run_omlx("ps", "--verbose", host=server.url).out
    with serving(tmp_path) as sound, sound.client() as http:
        # Kept for this model and these versions: not checked again, until somebody says so.
        http.post("/api/chat", json=HELLO)
        assert http.post("/api/show", json={"model": "taught"}).json()["notes"] == notes
        done = run_omlx("selftest", "--clear", "taught", host=sound.url)
        assert (done.code, done.out) == (
            0,
            "The results of taught:latest are forgotten: everything is switched on again.\n",
        )
        assert http.post("/api/chat", json=HELLO).json()["message"]["content"] == lesson("hello").content
        assert "notes" not in http.post("/api/show", json={"model": "taught"}).json()
        assert http.get("/api/omlx/status").json()["models"][0]["off"] == []


@pytest.mark.slow
def test_a_busy_model_makes_checks_inconclusive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test cannot unload a model that others use: that says nothing about it, and what was known stays."""
    monkeypatch.setattr("omlx.selftest.checks._UNLOAD_S", 0.5)

    async def busy(url: str) -> tuple[list[Check], SelfTestResponse]:
        said: list[Check] = []
        numbers = {"type": "array", "items": {"type": "integer"}, "minItems": 100_000}
        endless = {**HELLO, "stream": True, "format": numbers, "options": {"num_predict": 100_000}}
        async with Client(url) as client, Client(url) as other:
            reply = other.chat(endless)
            await anext(reply)
            task: list[asyncio.Task[None]] = []

            async def drain() -> None:
                async for _ in reply:
                    pass

            def heard(check: Check) -> None:
                said.append(check)
                if check.name == "restore":
                    task[0].cancel()

            task.append(asyncio.create_task(drain()))
            return said, await run(client, "taught", heard)

    with serving(tmp_path) as server, server.client() as http:
        keep(http, ("restore", "failed"))
        said, found = asyncio.run(busy(server.url))
        assert (said[0].name, said[0].outcome) == ("restore", "inconclusive")
        assert said[0].detail.endswith("run again when the server is idle")
        assert found.off == ["cache"]
        keep(http)
        said, found = asyncio.run(busy(server.url))
        assert (said[0].outcome, found.off) == ("inconclusive", [])


def test_tools_and_formats_that_failed_are_refused_for_that_model_alone(server: LocalServer) -> None:
    with server.client() as http:
        kept = keep(http, ("tools", "failed"), ("schema", "failed"), ("seed", "failed"))
        assert kept["off"] == ["tools", "format"]
        assert kept["result"]["checks"][0]["detail"] == "because of this"
        assert "tools" not in http.post("/api/show", json={"model": "taught"}).json()["capabilities"]
        for fields in ({"tools": [WEATHER_TOOL]}, {"format": "json"}):
            refused = http.post("/api/chat", json={**HELLO, **fields})
            assert refused.status_code == 400
            assert "switched off for this model since its self-test failed" in refused.json()["error"]
        assert http.post("/api/chat", json=HELLO).status_code == 200
        assert keep(http)["result"] is None
        assert "tools" in http.post("/api/show", json={"model": "taught"}).json()["capabilities"]
        assert http.post("/api/chat", json={**HELLO, "tools": [WEATHER_TOOL]}).status_code == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"model": "nope"}, 404),
        ({}, 400),
        ({"model": "taught", "checks": [{"name": "x", "outcome": "sideways"}]}, 400),
        ({"model": "taught", "checks": "all"}, 400),
    ],
)
def test_a_result_that_cannot_be_is_refused(server: LocalServer, body: dict[str, Any], status: int) -> None:
    with server.client() as http:
        answer = http.post("/api/omlx/selftest", json=body)
        assert answer.status_code == status
        assert answer.json()["error"]


def test_a_model_that_is_not_there_is_said(server: LocalServer) -> None:
    with pytest.raises(ClientError, match="not found"):
        selftest(server, "nope")
