"""Under `quiet` interactive first tokens come as they did: a real server and model, with a file for the sensors."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ollama
import pytest

from tests.e2e.conftest import MODEL
from tests.support.power import Readings, Stream, first_token_s
from tests.support.server import ServerProcess

NUMBERS = {"type": "array", "items": {"type": "integer"}, "minItems": 100_000}
"""The reply to this format has no end."""


@pytest.fixture
def server(tmp_path: Path, own_folders: None) -> Iterator[ServerProcess]:
    variables = {
        "OMLX_POWER": "quiet",
        "OMLX_POWER_READINGS": str(tmp_path / "readings.json"),
        "OMLX_SPARE_RUNNER": "false",
    }
    with ServerProcess(tmp_path / "server", env=variables) as server:
        for _ in ollama.Client(server.url).pull(MODEL, stream=True):
            pass
        yield server


def question(number: int) -> dict[str, Any]:
    """About fifty tokens that nobody sent before."""
    text = f"{number} {time.monotonic()}: " + "Tell me about the sea. " * 6
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": text}],
        "options": {"num_predict": 2, "temperature": 0},
    }


@pytest.mark.slow
def test_interactive_first_tokens_are_no_later(server: ServerProcess, tmp_path: Path) -> None:
    """The two states take turns, since the machine may have other work."""
    readings = Readings(tmp_path / "readings.json", server.url)
    endless = question(0) | {"format": NUMBERS, "options": {"num_predict": 100_000}}
    found: dict[str, list[float]] = {"": [], "user active": []}
    with Stream(server.url, endless, "background"):
        for turn in range(3):
            for reason, told in (("", {}), ("user active", {"idle_s": 1})):
                readings.say(**told)
                readings.until(lambda power, reason=reason: power["reason"] == reason)  # type: ignore[misc]
                found[reason] += [first_token_s(server.url, question(turn * 100 + at)) for at in range(4)]
    before, after = (statistics.median(times) for times in found.values())
    print(f"first token {before * 1000:.0f} ms before, {after * 1000:.0f} ms under quiet")
    assert after <= 1.1 * before
    assert "power: policy quiet (user active)" in server.log_text()
