"""What doctor says about a server follows from the server's own figures."""

from __future__ import annotations

from typing import Any

import pytest

from omlx.doctor import advise
from omlx.protocols.admin.wire import MemoryStatus, ModelStatus, StatusResponse

FULL = {"decode_steps": 1000, "mean_batch": 7.5, "tokens_looked_up": 10_000, "tokens_from_ram": 9_000}


def status(*models: dict[str, Any], **changes: Any) -> StatusResponse:
    fields: dict[str, Any] = {
        "version": "1", "waiting": 0, "pinned": [], "places": 8, "memory": MemoryStatus(device="cpu", used=1, cap=10),
        "models": [
            ModelStatus(**{
                "name": "m", "state": "ready", "pinned": False, "pid": 1, "size": 1, "weights": "", "context_length": 1,
                "running": 0, "waiting": 0, "max_batch": 1, "steps": 1, "crashes": 0, **model,
            })
            for model in models
        ],
        **changes,
    }  # fmt: skip
    return StatusResponse(**fields)


def states(found: StatusResponse) -> list[str]:
    return [finding.state for finding in advise(found)]


def test_a_server_that_does_well_gets_no_advice() -> None:
    assert states(status()) == ["ok", "ok"]
    found = advise(status(FULL))
    assert [finding.state for finding in found] == ["ok", "ok", "ok"]
    assert not any(finding.advice for finding in found)


@pytest.mark.parametrize(
    ("model", "state", "text"),
    [
        ({"decode_steps": 1000, "mean_batch": 3.9}, "warn", "its batches are 49% full: 3.9 of 8 requests per step"),
        ({"decode_steps": 10, "mean_batch": 1.0}, "ok", "ready, 0 running"),
        ({"tokens_looked_up": 10_000, "tokens_from_disk": 3_100}, "warn", "31% of the prompt tokens come from the SSD"),
        ({"tokens_looked_up": 10_000, "tokens_from_disk": 3_000}, "ok", "ready, 0 running"),
        ({"crashes": 2}, "fail", "its runner has ended by itself 2 times in a row"),
        ({"stalled": True}, "fail", "it has work and makes no progress"),
    ],
)
def test_a_models_figures_give_reason_for_advice(model: dict[str, Any], state: str, text: str) -> None:
    *_, found = advise(status(model))
    assert (found.name, found.state) == ("model m", state)
    assert found.text.startswith(text)
    assert bool(found.advice) == (state != "ok")


def test_pins_and_memory_give_reason_too() -> None:
    memory, pins = advise(status(pin_warning="4 of 10 models are pinned", pinned=["a"]))
    assert (memory.state, pins.state, pins.text) == ("ok", "warn", "4 of 10 models are pinned")
    assert states(status(memory=MemoryStatus(used=95, cap=100)))[0] == "warn"
    assert states(status(memory=MemoryStatus(used=105, cap=100, short=True)))[0] == "fail"
