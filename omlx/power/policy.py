"""*Policies*: from readings to work limits, as a pure function with hysteresis.

A *condition* is what readings mean ("hot", "user"). It begins at once and ends late: past a second threshold, and
after a time. A policy is a table of *rules*, condition to limits; where several conditions hold, the strictest limits
count. Without a sensor there is no condition, and without a condition there are no limits.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

import msgspec

from omlx.messages.work_limits import UNLIMITED, WorkLimits, strictest
from omlx.power.readings import Readings

PowerPolicy = Literal["performance", "balanced", "quiet", "battery"]
PowerSetting = Literal["auto", "performance", "balanced", "quiet", "battery"]
Condition = Literal["battery", "low battery", "low power", "user", "warm", "hot", "critical"]

TEXTS: Mapping[Condition, str] = {
    "battery": "on battery",
    "low battery": "battery nearly empty",
    "low power": "low-power mode",
    "user": "user active",
    "warm": "temperature raised",
    "hot": "temperature high",
    "critical": "temperature critical",
}
"""The names of the conditions in texts for the user."""

ACTIVE_S, GONE_S = 60.0, 300.0
"""A user is active from an input that is no older than the first to one that is older than the second."""
EMPTY, FILLED = 0.2, 0.25
"""The battery is nearly empty below the first, until it is above the second."""
COOL_S = 30.0
"""A temperature must have fallen for so long."""
SETTLE_S = 5.0
"""Other conditions must have ended for so long."""
_HEAT: Mapping[str, tuple[Condition, ...]] = {
    "fair": ("warm",), "serious": ("warm", "hot"), "critical": ("warm", "hot", "critical"),
}  # fmt: skip

_HOT = WorkLimits(share=0.5, speculation=False)
_CRITICAL = WorkLimits(pace=0.5, share=0.25, background=False, speculation=False)
RULES: Mapping[PowerPolicy, Mapping[Condition, WorkLimits]] = {
    "performance": {},
    "balanced": {
        "battery": WorkLimits(share=0.5, keep_alive=120),
        "user": WorkLimits(share=0.5),
        "hot": _HOT,
        "critical": _CRITICAL,
    },
    "quiet": {
        "battery": WorkLimits(share=0.5, keep_alive=120),
        "low power": WorkLimits(share=0.25, places=4, speculation=False, keep_alive=120),
        "user": WorkLimits(share=0.25, places=4, prefill=0.5, speculation=False),
        "warm": WorkLimits(share=0.25, places=4, speculation=False),
        "hot": WorkLimits(pace=0.75, share=0.25, background=False, speculation=False),
        "critical": _CRITICAL,
    },
    "battery": {
        "battery": WorkLimits(
            share=0.25, background=False, places=2, speculation=False, checkpoints=False, keep_alive=60
        ),
        "low battery": WorkLimits(pace=0.75, share=0.1, keep_alive=30),
        "hot": _HOT,
        "critical": _CRITICAL,
    },
}


class PowerDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What holds now, and what follows from it."""

    policy: PowerPolicy = "performance"
    """The one in use: what `auto` has chosen, else the setting."""
    conditions: tuple[Condition, ...] = ()
    """Those that have rules in this policy, in the order of `TEXTS`."""
    limits: WorkLimits = UNLIMITED
    seen: dict[Condition, float] = {}
    """When each condition that counts was last seen, for the next decision."""

    @property
    def reason(self) -> str:
        """Why there are limits: "on battery, user active"; "" where there are none."""
        return ", ".join(TEXTS[name] for name in self.conditions)


def decide(setting: PowerSetting, readings: Readings, now: float, before: PowerDecision | None = None) -> PowerDecision:
    """The next decision. `now` in seconds of a clock that only grows."""
    seen = before.seen if before is not None else {}
    present = _present(readings, seen.keys())
    kept = {name: since for name, since in seen.items() if name not in present and now - since < _holds_s(name)}
    seen = kept | dict.fromkeys(present, now)
    policy = _chosen(seen.keys()) if setting == "auto" else setting
    rules = RULES[policy]
    conditions = tuple(name for name in TEXTS if name in seen and name in rules)
    limits = UNLIMITED
    for name in conditions:
        limits = strictest(limits, rules[name])
    return PowerDecision(policy=policy, conditions=conditions, limits=limits, seen=seen)


def _chosen(conditions: Collection[Condition]) -> PowerPolicy:
    """The policy of the setting `auto`."""
    if "battery" in conditions:
        return "battery"
    return "quiet" if "low power" in conditions else "performance"


def _present(readings: Readings, before: Collection[Condition]) -> list[Condition]:
    """The conditions that the readings show; for some it matters whether they held before."""
    conditions: list[Condition] = []
    if readings.on_battery:
        conditions.append("battery")
        level = FILLED if "low battery" in before else EMPTY
        if readings.battery is not None and readings.battery < level:
            conditions.append("low battery")
    if readings.low_power:
        conditions.append("low power")
    if _user_active(readings, GONE_S if "user" in before else ACTIVE_S):
        conditions.append("user")
    conditions += _HEAT.get(readings.thermal or "", ())
    return conditions


def _user_active(readings: Readings, longest_s: float) -> bool:
    """By the last input; where that is not known, whether the display is on."""
    if readings.idle_s is not None:
        return readings.idle_s < longest_s
    return bool(readings.display_on)


def _holds_s(name: Condition) -> float:
    return COOL_S if name in ("warm", "hot", "critical") else SETTLE_S
