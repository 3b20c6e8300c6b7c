"""How a model will be loaded follows from its spec, the settings and the machine."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from omlx.pool import PoolError
from omlx.pool.admission import GIB, Machine
from omlx.pool.measured import Measurement
from omlx.pool.pins import too_many_pins
from omlx.pool.plan import keep_alive_for, plan_load
from omlx.settings import Settings
from tests.pool.support import spec

LLAMA_8B = {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}


def cuda(gib: int) -> Machine:
    return Machine(ram=512 * GIB, available=400 * GIB, device="cuda", device_memory=gib * GIB)


def test_a_model_that_was_measured_is_planned_by_that(tmp_path: Path) -> None:
    known = Measurement(3 * GIB, 1_000_000)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    found = plan_load(spec(path=str(tmp_path), size=GIB), Settings(), cuda(140), held=0, measured=known)
    assert found.need == 3 * GIB + 1_000_000 * found.context


@pytest.mark.parametrize(
    ("parameters", "setting", "seconds"),
    [
        ({}, [], 300),
        ({"keep_alive": "1h"}, [], 3600),
        ({"keep_alive": "-1"}, [], math.inf),
        ({"keep_alive": 90}, [], 90),
        ({"keep_alive": "nonsense"}, [], 300),
        ({"keep_alive": "1h"}, ["other=5", "tiny=10m"], 600),
        ({}, ["tiny:latest=0", "tiny=7"], 0),
        ({}, ["other=5", "//=9"], 300),
    ],
)
def test_a_model_may_have_its_own_keep_alive(parameters: dict[str, Any], setting: list[str], seconds: float) -> None:
    assert keep_alive_for(spec(parameters=parameters), Settings(model_keep_alive=setting)) == seconds


@pytest.mark.parametrize(
    ("pinned", "registered", "size", "text"),
    [
        (0, 0, 0, ""),
        (3, 10, 5 * GIB, ""),
        (4, 10, 0, "4 of 10 models are pinned"),
        (1, 10, 6 * GIB, "the pinned models take 6.0 GiB of 10.0 GiB"),
    ],
)
def test_too_many_pins_are_said(pinned: int, registered: int, size: int, text: str) -> None:
    said = too_many_pins(pinned, registered, size, 10 * GIB)
    assert said.startswith(text)
    assert bool(said) == bool(text)


def plan(folder: Path, machine: Machine, *, settings: dict[str, Any] | None = None, **changes: Any) -> Any:
    (folder / "config.json").write_text(json.dumps(LLAMA_8B))
    model = spec(path=str(folder), **{"size": 16 * GIB, "context_length": 131072, **changes})
    return plan_load(model, Settings(**(settings or {})), machine, held=0, measured=None)


def test_an_automatic_context_steps_down_until_it_fits(tmp_path: Path) -> None:
    assert plan(tmp_path, cuda(140)).context == 131072  # 262144, at most the trained one
    assert plan(tmp_path, cuda(47), size=40 * GIB).context == 32768
    assert plan(tmp_path, cuda(47), size=43 * GIB).context == 4096


def test_a_context_somebody_asked_for_is_kept(tmp_path: Path) -> None:
    assert plan(tmp_path, cuda(47), size=43 * GIB, parameters={"num_ctx": 16384}).context == 16384
    assert plan(tmp_path, cuda(47), settings={"context_length": 8192}).context == 8192
    assert plan(tmp_path, cuda(47), settings={"context_length": 8192}, parameters={"num_ctx": 2048}).context == 2048


def test_the_largest_context_is_what_the_rest_of_the_memory_holds(tmp_path: Path) -> None:
    assert plan(tmp_path, cuda(140)).largest == 131_072  # trained for no more
    squeezed = plan(tmp_path, cuda(24), context_length=10**7)
    assert squeezed.context < squeezed.largest < 10**7
    # 32 layers of 8 heads of 128 numbers, keys and values, 2 bytes each: 131,072 bytes a token.
    fixed = squeezed.need - 131_072 * squeezed.context
    assert fixed + 131_072 * squeezed.largest <= squeezed.room.budget < fixed + 131_072 * (squeezed.largest + 1)
    assert plan(tmp_path, cuda(140), settings={"max_model_memory": "20GB"}).largest < 131_072


def test_the_budget_is_the_smaller_of_the_cap_and_what_is_there(tmp_path: Path) -> None:
    small = Machine(ram=64 * GIB, available=20 * GIB)
    assert plan(tmp_path, small, size=GIB).room.budget == 20 * GIB
    assert plan(tmp_path, small, size=GIB, settings={"max_process_memory": "25%"}).room.budget == 16 * GIB


def test_a_model_larger_than_its_cap_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PoolError, match="requires more system memory"):
        plan(tmp_path, cuda(12))
    with pytest.raises(PoolError, match="max_model_memory"):
        plan(tmp_path, cuda(140), settings={"max_model_memory": "8GB"})
