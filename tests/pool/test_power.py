"""The pool and the governor of power: limits reach every runner, and idle models go sooner."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from omlx.pool import policy
from tests.pool.support import faulty, names, running_pool, spec, touch, until

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("keep_alive", "most", "expected"),
    [
        (300.0, None, 300.0),
        (300.0, 60.0, 60.0),
        (300.0, 600.0, 300.0),
        (301.0, 60.0, 301.0),  # somebody asked for it
        (20.0, 60.0, 20.0),
        (math.inf, 60.0, math.inf),
    ],
)
def test_a_keep_alive_that_nobody_asked_for_is_shortened(
    keep_alive: float, most: float | None, expected: float
) -> None:
    assert policy.shortened(keep_alive, default=300.0, most=most) == expected


async def test_on_battery_idle_models_go_sooner(tmp_path: Path) -> None:
    """Sixty seconds after their last use; one that was kept by a request stays."""
    file = tmp_path / "readings.json"
    settings = {"power_readings": str(file), "keep_alive": 3600.0, "max_loaded_models": 3}
    async with running_pool(tmp_path, command=faulty("none"), **settings) as pool:
        pool.power._busy = lambda: True  # it looks each second, not each ten
        await touch(pool, spec("usual"))
        await touch(pool, spec("kept"), keep_alive=1800.0)
        usual, kept = (
            next(one for one in pool.loaded() if one.spec.name == f"{name}:latest") for name in ("usual", "kept")
        )
        slot = pool._table.slots[usual.spec.digest]
        assert slot.expires_at is not None and slot.expires_at - pool._now() > 3000
        file.write_text(json.dumps({"on_battery": True}))
        await until(lambda: pool.power.report.policy == "battery")
        assert 50 < slot.expires_at - pool._now() <= 60
        assert pool._table.slots[kept.spec.digest].expires_at - pool._now() > 1700  # type: ignore[operator]
        slot.used_at -= 59.0  # a minute ago, nearly
        pool._limit_work(pool.power.limits)
        assert slot.expires_at - pool._now() > 50, "the same limits change no timer"
        file.write_text(json.dumps({"on_battery": False}))
        await until(lambda: pool.power.report.policy == "performance")
        assert slot.expires_at - pool._now() > 3000
        file.write_text(json.dumps({"on_battery": True}))
        await until(lambda: names(pool) == {"kept"})


async def test_who_set_no_policy_and_has_no_sensor_notices_nothing(tmp_path: Path) -> None:
    async with running_pool(tmp_path, command=faulty("none"), power_readings=str(tmp_path / "none")) as pool:
        await touch(pool, spec())
        await until(lambda: pool.power._looked > 0)
        assert (pool.power.report.text, pool.power.report.changes) == ("", 0)
