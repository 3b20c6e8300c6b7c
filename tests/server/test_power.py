"""A real server with real runners obeys its power policy: only the sensors are replaced, by a file of readings."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from omlx_registry import Registry

from omlx.power.policy import RULES
from omlx.settings import Settings
from tests.server.local import LocalServer, eventually
from tests.support.lessons import lesson
from tests.support.power import Readings, Stream
from tests.support.tiny import DATA

SHARE = RULES["quiet"]["user"].share
STORY = {"model": "taught", "messages": [{"role": "user", "content": "Tell me a story."}]}
NUMBERS = {"type": "array", "items": {"type": "integer"}, "minItems": 1_000_000}
ENDLESS = STORY | {"format": NUMBERS, "options": {"temperature": 1.0, "num_predict": 1_000_000, "seed": 1}}
AWAY: dict[str, Any] = {"idle_s": 3600, "on_battery": False}
TYPING: dict[str, Any] = {"idle_s": 1, "on_battery": False}


@pytest.fixture
def readings_file(tmp_path: Path) -> Path:
    return tmp_path / "readings.json"


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path, readings_file: Path) -> Iterator[LocalServer]:
    """Its parameter: the settings."""
    registry = Registry(tmp_path / "models", [])
    registry.add_model_folder("taught", DATA / "taught-qwen3", transfer="copy")
    settings = Settings(
        models=str(tmp_path / "models"),
        paged_ssd_cache_dir=str(tmp_path / "kv"),
        spare_runner=False,
        power_readings=str(readings_file),
        **request.param,
    )
    with LocalServer(registry, settings) as server:
        yield server


@pytest.fixture
def readings(server: LocalServer, readings_file: Path) -> Readings:
    return Readings(readings_file, server.url)


quiet = pytest.mark.parametrize("server", [{"power": "quiet"}], indirect=True)
automatic = pytest.mark.parametrize("server", [{}], indirect=True)
limited = pytest.mark.parametrize("server", [{"power_limit": 30.0}], indirect=True)


def hello(server: LocalServer) -> str:
    body = STORY | {"messages": [{"role": "user", "content": "Hello"}], "stream": False, "options": {"temperature": 0}}
    with server.client() as client:
        reply: str = client.post("/api/chat", json=body).json()["message"]["content"]
        return reply


@pytest.mark.slow
@quiet
def test_a_background_stream_slows_to_its_share_within_two_seconds(server: LocalServer, readings: Readings) -> None:
    """The two states take turns, since the machine may have other work."""
    rates: dict[str, list[float]] = {"": [], "user active": []}
    with Stream(server.url, ENDLESS, "background") as stream:
        for _ in range(3):
            readings.say(**AWAY)
            readings.until(lambda power: power["reason"] == "")
            now = time.monotonic()
            rates[""].append(stream.rate(now, now + 3))
            changed = readings.say(**TYPING)
            rates["user active"].append(stream.rate(changed + 2, changed + 5))
    before, after = (statistics.median(found) for found in rates.values())
    print(f"{after:.0f} of {before:.0f} tokens a second: {after / before:.0%} where {SHARE:.0%} is the share")
    assert 0.6 * SHARE < after / before < 1.4 * SHARE


@quiet
def test_the_policy_reaches_the_runner_and_interactive_replies_are_what_they_were(
    server: LocalServer, readings: Readings
) -> None:
    with Stream(server.url, ENDLESS, "background") as stream:
        readings.say(**TYPING)
        readings.until(lambda power: power["reason"] == "user active")
        found = readings.power()
        assert (found["policy"], found["share"]) == ("quiet", SHARE)
        assert hello(server) == lesson("hello").content
        stream.wait_for(5)


@quiet
def test_no_sensor_no_change(server: LocalServer, readings: Readings) -> None:
    limits: list[object] = []

    async def watch() -> None:
        apply = server.pool.power._apply
        server.pool.power._apply = lambda found: (limits.append(found), apply(found))[1]  # type: ignore[func-returns-value]

    server.ask(watch)
    with Stream(server.url, ENDLESS, "background") as stream:
        looked = server.pool.power._looked
        assert eventually(lambda: server.pool.power._looked > looked + 2)
        stream.wait_for(5)
        assert (readings.power()["text"], readings.power()["changes"], limits) == ("", 0, [])
        readings.say(**TYPING)  # the same server does change, once it has a sensor
        assert eventually(lambda: len(limits) == 1)


@automatic
def test_on_battery_background_requests_wait_and_go_on_on_mains(server: LocalServer, readings: Readings) -> None:
    with Stream(server.url, ENDLESS, "background") as stream:
        readings.say(on_battery=True)
        readings.until(lambda power: power["policy"] == "battery")
        assert eventually(stream.rests)
        assert hello(server) == lesson("hello").content
        assert stream.rests()
        readings.say(on_battery=False)
        stream.wait_for(20)
    assert eventually(lambda: server.running() == 0)
    with server.client() as client:
        status = client.get("/api/omlx/status").json()
        assert status["models"][0]["crashes"] == 0 and not status["models"][0]["stalled"]
        assert status["power"]["policy"] == "performance"


@automatic
def test_a_client_of_a_held_request_may_leave(server: LocalServer, readings: Readings) -> None:
    readings.say(on_battery=True)
    assert hello(server) == lesson("hello").content
    readings.until(lambda power: power["policy"] == "battery")
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{server.url}/api/chat",
            json=ENDLESS,
            headers={"X-OMLX-Priority": "background"},
            timeout=1.5,
            trust_env=False,
        )
    assert eventually(lambda: server.running() == 0)


@limited
def test_a_power_limit_slows_replies_down_and_lets_them_go_again(server: LocalServer, readings: Readings) -> None:
    with Stream(server.url, ENDLESS, "interactive") as stream:
        readings.say(cpu_watts=90)
        readings.until(lambda power: power["pace"] < 0.5)
        assert readings.power()["text"].startswith("power limit 30 W (90 W now)")
        stream.wait_for(3)
        readings.say(cpu_watts=5)
        readings.until(lambda power: power["pace"] > 0.6)
        stream.wait_for(20)


@pytest.mark.slow
@limited
def test_a_power_limit_is_held_by_feedback(server: LocalServer, readings: Readings) -> None:
    """The machine is simulated: 10 W without work, 50 W more for a stream at full speed."""
    with Stream(server.url, ENDLESS, "interactive") as stream:
        now = time.monotonic()
        full = stream.rate(now, now + 2)
        powers = []
        for _ in range(12):
            begin = time.monotonic()
            rate = stream.rate(begin, begin + 1)
            watts = 10 + 50 * min(rate / full, 1.0)
            powers.append(watts)
            readings.say(cpu_watts=watts)
        settled = sum(powers[-5:]) / 5
    assert settled == pytest.approx(30, rel=0.2), powers
    found = readings.power()
    assert found["limit_watts"] == 30 and found["pace"] < 0.8 and found["text"].startswith("power limit 30 W (")
