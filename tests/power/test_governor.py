"""The governor looks, decides and tells: once for each change, and nothing where nothing changes."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from omlx.messages.work_limits import UNLIMITED, WorkLimits
from omlx.power import PowerGovernor, Readings, Sensors, sensors

pytestmark = pytest.mark.anyio


class Watched:
    """A governor with a clock of its own, and all limits that it has applied."""

    def __init__(self, setting: Any, power_limit: float = 0.0, busy: bool = True) -> None:
        self.now, self.applied, self.changes = 0.0, list[WorkLimits](), 0
        self.busy = busy
        self.governor = PowerGovernor(
            setting,
            power_limit,
            lambda: Sensors([]),
            busy=lambda: self.busy,
            apply=self.applied.append,
            clock=lambda: self.now,
        )
        self.governor.changed = self._count

    def _count(self) -> None:
        self.changes += 1

    def look(self, **readings: Any) -> WorkLimits:
        self.now += 1.0
        self.governor.look(Readings(**readings), busy=self.busy)
        return self.governor.limits


def test_a_change_is_told_once_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "omlx.power")
    watched = Watched("quiet")
    for idle in (900, 1, 1, 2, 900, 900):
        watched.look(idle_s=idle)
    watched.now += 60
    watched.look(idle_s=900)
    watched.look(idle_s=900)
    assert [limits.share for limits in watched.applied] == [0.25, 1.0]
    assert [record.message for record in caplog.records] == [
        "power: policy quiet (user active): batch and background requests get 25% of the time",
        "power: policy quiet, nothing is limited",
    ]
    assert watched.changes == watched.governor.report.changes == 2


def test_no_sensor_no_change(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "omlx.power")
    for setting in ("auto", "performance", "balanced", "quiet", "battery"):
        watched = Watched(setting)
        for _ in range(5):
            assert watched.look() == UNLIMITED
        assert (watched.applied, watched.changes, watched.governor.report.text) == ([], 0, "")
    assert not caplog.records


def test_a_power_limit_is_held_by_pauses() -> None:
    watched = Watched("auto", power_limit=30)
    pace = 1.0
    for _ in range(60):
        pace = watched.look(cpu_watts=5 + 45 * pace).pace
    assert 5 + 45 * pace == pytest.approx(30, abs=1.5)
    text = watched.governor.report.text
    assert text.startswith("power limit 30 W (") and text.endswith(f"steps take {pace:.0%} of the time")
    sent = len(watched.applied)
    for _ in range(20):
        watched.look(cpu_watts=5 + 45 * pace)
    assert len(watched.applied) - sent <= 1, "a limit that is held needs no new frames"


def test_an_idle_machine_teaches_the_power_limit_nothing() -> None:
    watched = Watched("auto", power_limit=30)
    for _ in range(20):
        watched.look(cpu_watts=60)
    held = watched.governor.limits.pace
    watched.busy = False
    for _ in range(20):
        watched.look(cpu_watts=5)
    assert watched.governor.limits.pace == held < 0.2


def test_a_power_limit_without_a_sensor_is_told_once_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched("auto", power_limit=30)
    for _ in range(5):
        assert watched.look() == UNLIMITED
    assert [record.message for record in caplog.records] == [
        "power_limit 30 W cannot be held: no sensor of this machine tells its power"
    ]
    assert watched.governor.report.text == ("power limit 30 W (power is not measured): steps take 100% of the time")


def test_a_policy_and_a_power_limit_slow_down_together() -> None:
    watched = Watched("quiet", power_limit=30)
    for _ in range(3):
        limits = watched.look(cpu_watts=45, thermal="serious")
    assert limits.pace == pytest.approx(0.75 * 0.8**3, rel=0.03) and limits.share == 0.25


async def test_a_governor_reads_its_sensors_by_itself(tmp_path: Path) -> None:
    file = tmp_path / "readings.json"
    file.write_text(json.dumps({"on_battery": True}))
    applied: asyncio.Queue[WorkLimits] = asyncio.Queue()
    governor = PowerGovernor("auto", 0.0, lambda: sensors(str(file)), busy=lambda: True, apply=applied.put_nowait)
    watching = asyncio.create_task(governor.watch())
    try:
        async with asyncio.timeout(30):
            assert (await applied.get()).share == 0.25
            assert (governor.report.policy, governor.report.reason) == ("battery", "on battery")
    finally:
        watching.cancel()


async def test_nothing_is_read_where_nothing_could_follow() -> None:
    def opened() -> Sensors:
        raise AssertionError("no sensor should be opened")

    governor = PowerGovernor("performance", 0.0, opened, busy=lambda: True, apply=lambda _: None)
    async with asyncio.timeout(10):
        await governor.watch()


async def test_a_policy_that_no_sensor_can_serve_is_told(caplog: pytest.LogCaptureFixture) -> None:
    governor = PowerGovernor("quiet", 0.0, lambda: Sensors([]), busy=lambda: True, apply=lambda _: None)
    watching = asyncio.create_task(governor.watch())
    async with asyncio.timeout(30):
        while not caplog.records:
            await asyncio.sleep(0.01)
    watching.cancel()
    assert caplog.records[0].message.endswith("so policy quiet limits nothing")
