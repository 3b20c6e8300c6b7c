"""How a model will be loaded follows from its spec, the settings and the machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from omlx.pool import PoolError
from omlx.pool.admission import GIB, Machine
from omlx.pool.plan import plan_load
from omlx.settings import Settings
from tests.pool.support import spec

LLAMA_8B = {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}


def cuda(gib: int) -> Machine:
    return Machine(ram=512 * GIB, available=400 * GIB, device="cuda", device_memory=gib * GIB)


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


def test_the_budget_is_the_smaller_of_the_cap_and_what_is_there(tmp_path: Path) -> None:
    small = Machine(ram=64 * GIB, available=20 * GIB)
    assert plan(tmp_path, small, size=GIB).room.budget == 20 * GIB
    assert plan(tmp_path, small, size=GIB, settings={"max_process_memory": "25%"}).room.budget == 16 * GIB


def test_a_model_larger_than_its_cap_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PoolError, match="requires more system memory"):
        plan(tmp_path, cuda(12))
    with pytest.raises(PoolError, match="max_model_memory"):
        plan(tmp_path, cuda(140), settings={"max_model_memory": "8GB"})
