"""The *power governor* of a server: reads the sensors, decides the work limits, and reports each change.

It reads them once a second while a model works and every ten seconds otherwise, for keep-alives. It reads nothing where
neither a policy nor a power limit could make a difference.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

import msgspec

from omlx.messages.work_limits import UNLIMITED, WorkLimits
from omlx.power.controller import next_pace
from omlx.power.policy import PowerDecision, PowerPolicy, PowerSetting, decide
from omlx.power.readings import Readings, Sensors

log = logging.getLogger("omlx.power")

EVERY_S: Final = 1.0
_IDLE_EVERY_S: Final = 10.0
"""While no model works."""
_WORTH_SENDING: Final = 0.02
"""A pace that differs by less from the one in use is not sent."""


class PowerReport(msgspec.Struct, frozen=True, kw_only=True):
    """The state of power, for status, metrics and dashboard."""

    setting: PowerSetting = "performance"
    policy: PowerPolicy = "performance"
    """The one in use."""
    reason: str = ""
    """Why work is limited, "on battery, user active"; "" where no policy limits it."""
    limits: WorkLimits = UNLIMITED
    watts: float | None = None
    """Measured; None: not known, or not measured."""
    power_limit: float = 0.0
    """0: none."""
    changes: int = 0
    """Of policy or reason since the start."""

    @property
    def text(self) -> str:
        """One sentence: the policy, what it limits and why; "" where nothing is limited."""
        parts = []
        if self.reason:
            parts.append(f"{self.policy}: {self.reason}; {summary(self.limits)}")
        if self.power_limit:
            now = "power is not measured" if self.watts is None else f"{self.watts:.0f} W now"
            parts.append(f"power limit {self.power_limit:g} W ({now}): steps take {self.limits.pace:.0%} of the time")
        return "; ".join(parts)


def summary(limits: WorkLimits) -> str:
    """What limits mean for requests, as text for the user."""
    lower = "batch" if not limits.background else "batch and background"
    parts = []
    if limits.share < 1:
        parts.append(f"{lower} requests get {limits.share:.0%} of the time")
    if not limits.background:
        parts.append("background requests wait")
    if limits.pace < 1:
        parts.append("replies are slowed down")
    if limits.keep_alive is not None:
        parts.append(f"idle models are unloaded after {limits.keep_alive:.0f} s")
    return ", ".join(parts) or "less is computed and saved in advance"


class PowerGovernor:
    """`busy` returns whether a model works; `apply` takes new limits. Lives on the server's event loop."""

    def __init__(
        self,
        setting: PowerSetting,
        power_limit: float,
        sensors: Callable[[], Sensors],
        *,
        busy: Callable[[], bool],
        apply: Callable[[WorkLimits], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open = sensors
        self._busy, self._apply, self._clock = busy, apply, clock
        policy: PowerPolicy = "performance" if setting == "auto" else setting
        self._decision = PowerDecision(policy=policy)
        self._pace = 1.0
        """Of the power limit."""
        self._unmeasured = False
        self._looked = -_IDLE_EVERY_S
        self.report = PowerReport(setting=setting, policy=policy, power_limit=power_limit)
        self.changed: Callable[[], None] = lambda: None
        """Called after a change that users may see."""

    @property
    def limits(self) -> WorkLimits:
        return self.report.limits

    async def watch(self) -> None:
        """Runs until it is cancelled; returns at once where there is nothing to decide."""
        if self.report.setting == "performance" and not self.report.power_limit:
            return
        sensors = await asyncio.to_thread(self._open)
        if self.report.setting != "auto" and await asyncio.to_thread(sensors.read) == Readings():
            log.warning("power: no sensor of this machine can be read, so policy %s limits nothing", self.report.policy)
        while True:
            busy = self._busy()
            if busy or self._clock() - self._looked >= _IDLE_EVERY_S:
                readings = await asyncio.to_thread(sensors.read)
                self.look(readings, busy=busy)
            await asyncio.sleep(EVERY_S)

    def look(self, readings: Readings, *, busy: bool) -> None:
        """Decide anew by these readings. The power limit learns from them only while a model works."""
        now = self._looked = self._clock()
        before, self._decision = self._decision, decide(self.report.setting, readings, now, self._decision)
        limits = self._decision.limits
        if self.report.power_limit:
            self._hold_power(readings.watts, busy)
            limits = msgspec.structs.replace(limits, pace=limits.pace * self._pace)
            if abs(limits.pace - self.limits.pace) < _WORTH_SENDING and limits.pace < 1:
                limits = msgspec.structs.replace(limits, pace=self.limits.pace)
        changed = (before.policy, before.conditions) != (self._decision.policy, self._decision.conditions)
        applied = self.limits
        self.report = msgspec.structs.replace(
            self.report,
            policy=self._decision.policy,
            reason=self._decision.reason,
            limits=limits,
            watts=readings.watts,
            changes=self.report.changes + changed,
        )
        if changed:
            log.info("power: %s", _described(self._decision))
        if limits != applied:
            log.debug("power: limits %s", limits)
            self._apply(limits)
        if changed or limits != applied:
            self.changed()

    def _hold_power(self, watts: float | None, busy: bool) -> None:
        limit = self.report.power_limit
        if watts is None:
            if not self._unmeasured:
                log.warning("power_limit %g W cannot be held: no sensor of this machine tells its power", limit)
            self._unmeasured, self._pace = True, 1.0
        elif busy:
            self._unmeasured = False
            self._pace = next_pace(self._pace, watts, limit)


def _described(decision: PowerDecision) -> str:
    if not decision.reason:
        return f"policy {decision.policy}, nothing is limited"
    return f"policy {decision.policy} ({decision.reason}): {summary(decision.limits)}"
