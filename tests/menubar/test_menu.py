"""The menu says what was seen, and offers what can be done about it."""

from __future__ import annotations

import msgspec
import pytest

from omlx.menubar.menu import MOST_MODELS, Act, MenuEntry, entries, status_line
from omlx.menubar.seen import ServerState
from omlx.protocols.admin.overview import Kv, ModelRow, Overview
from omlx.protocols.admin.power import PowerStatus

URL = "http://127.0.0.1:11434"
KV = Kv(
    ram_tokens=0, disk_tokens=0, prompt_tokens=0, hit_rate=None, ram_bytes=0, ram_limit=0, disk_bytes=0, disk_limit=0
)
IDLE = Overview(
    version="1", uptime=1, running=0, waiting=0, read_rate=0, read_tokens=0, generated_rate=0, generated_tokens=0,
    requests=0, batch_fill=None, batch_limit=4, first_token_p50=None, first_token_p95=None, memory_used=2_000_000_000,
    memory_limit=16_000_000_000, kv=KV, models=[], pulls=[], advice=[],
)  # fmt: skip


def row(name: str, state: str = "ready") -> ModelRow:
    return ModelRow(
        name=name, state=state, size=5_000_000_000, running=0, waiting=0, context_length=4096, weights="", pinned=False,
        expires_in=None, crashes=0,
    )  # fmt: skip


def seen(*models: ModelRow, running: int = 0, rate: float = 0.0, **fields: object) -> ServerState:
    """A server with these models loaded."""
    overview = msgspec.structs.replace(IDLE, models=list(models), running=running, generated_rate=rate)
    return msgspec.structs.replace(ServerState(url=URL, overview=overview), **fields)


def offered(menu: tuple[MenuEntry, ...]) -> dict[str, Act | None]:
    """What each line would do, submenus included."""
    found = {entry.text: entry.act for entry in menu if entry.text}
    for entry in menu:
        found |= {f"{entry.text}/{one.text}": one.act for one in entry.below}
    return found


@pytest.mark.parametrize(
    ("look", "line"),
    [
        (ServerState(url=URL), "Server is not running"),
        (ServerState(url=URL, trouble="Ollama runs here, not oMLX"), "Ollama runs here, not oMLX"),
        (ServerState(url=URL, doing="Starting the server…"), "Starting the server…"),
        (seen(), "No model loaded"),
        (seen(row("qwen3:8b")), "qwen3:8b · idle"),
        (seen(row("qwen3:8b"), running=1, rate=41.6), "qwen3:8b · 42 tok/s · 1 request"),
        (seen(row("qwen3:8b"), running=2), "qwen3:8b · reading · 2 requests"),
        (seen(row("a"), row("b"), running=3, rate=9.2), "2 models · 9 tok/s · 3 requests"),
    ],
)
def test_the_first_line_is_model_and_speed(look: ServerState, line: str) -> None:
    assert status_line(look) == line
    assert entries(look)[0] == MenuEntry(text=line)


@pytest.mark.parametrize(
    ("power", "line"),
    [
        (PowerStatus(), ""),
        (PowerStatus(setting="quiet", policy="quiet"), ""),
        (PowerStatus(policy="quiet", reason="user active"), "Power: quiet, user active"),
        (PowerStatus(limit_watts=30.0, watts=28.4), "Power: 28 of 30 W"),
        (PowerStatus(limit_watts=30.0), "Power: 30 W"),
        (PowerStatus(policy="battery", reason="on battery", limit_watts=12.5, watts=11),
         "Power: battery, on battery · 11 of 12.5 W"),
    ],
)  # fmt: skip
def test_a_power_policy_that_limits_work_is_named_with_its_reason(power: PowerStatus, line: str) -> None:
    look = msgspec.structs.replace(ServerState(url=URL), overview=msgspec.structs.replace(IDLE, power=power))
    assert [entry.text for entry in entries(look) if entry.text.startswith("Power")] == ([line] if line else [])


def test_a_stopped_server_can_be_started_and_nothing_else() -> None:
    found = offered(entries(ServerState(url=URL)))
    assert found["Start server"] == Act("start")
    assert found["Open dashboard"] is None
    assert found[f"Copy {URL}"] == Act("copy")
    assert "Stop server" not in found


@pytest.mark.parametrize(
    "look", [ServerState(url=URL, startable=False), ServerState(url=URL, trouble="Ollama runs here, not oMLX")]
)
def test_nothing_is_started_where_it_could_not_be_or_somebody_else_is(look: ServerState) -> None:
    assert offered(entries(look))["Start server"] is None


def test_models_are_loaded_unloaded_and_pinned() -> None:
    look = seen(row("warm"), row("new", "loading"), models=("cold", "warm", "kept"), pinned=frozenset({"kept"}))
    found = offered(entries(look))
    assert found["warm · 5 GB/Unload"] == Act("unload", "warm")
    assert found["warm · 5 GB/Pinned"] == Act("pin", "warm")
    assert found["new · loading/Unload"] == Act("unload", "new")
    assert found["cold/Load"] == Act("load", "cold")
    assert found["kept · pinned/Pinned"] == Act("unpin", "kept")
    assert "Memory: 2 GB of 16 GB" in found


def test_a_click_means_the_same_whatever_models_come_and_go() -> None:
    """Platforms tell a click by its place."""
    few, many = entries(seen()), entries(seen(row("a"), row("b"), models=("c",)))
    stays = [entry.act for entry in few if entry.act]
    assert [entry.act for entry in many if entry.act][: len(stays)] == stays


def test_hundreds_of_models_and_long_names_stay_a_menu() -> None:
    names = tuple(f"m{number}" for number in range(300))
    menu = entries(seen(models=("x" * 500, *names)))
    assert sum(bool(entry.below) for entry in menu) == MOST_MODELS
    assert menu[-1] == MenuEntry(text=f"{301 - MOST_MODELS} more on the dashboard", act=Act("dashboard"))
    assert max(len(entry.text) for entry in menu) <= 80


def test_why_a_click_came_to_nothing_is_one_line() -> None:
    menu = entries(seen(complaint="model 'x' not found,\ntry pulling it first " + "!" * 200))
    (line,) = [entry.text for entry in menu if entry.text.startswith("model 'x'")]
    assert "\n" not in line
    assert len(line) <= 80
