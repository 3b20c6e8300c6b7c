"""Linux: files of /sys, and logind for the user's activity."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

_NEAR: Final = 5_000
"""Millidegrees. A temperature this close below a trip point counts as near."""
_TIMEOUT_S: Final = 2.0
_ORDER: Final = ("nominal", "fair", "serious", "critical")
_SAVING: Final = frozenset({"low-power", "quiet", "cool"})


def supplies(root: Path) -> dict[str, Any]:
    """From /sys/class/power_supply: whether the machine runs on battery, and the charge of the batteries."""
    mains: list[bool] = []
    levels: list[float] = []
    discharging, watts = False, 0.0
    for folder in _entries(root / "sys/class/power_supply"):
        kind = _text(folder / "type")
        if kind == "Battery":
            if _text(folder / "scope") == "Device":  # of a peripheral
                continue
            level = _number(folder / "capacity")
            if level is not None and 0 <= level <= 100:
                levels.append(level / 100)
            if _text(folder / "status") == "Discharging":
                discharging = True
                watts += _drawn(folder)
        elif kind in ("Mains", "USB") and (online := _number(folder / "online")) is not None:
            mains.append(online > 0)
    readings: dict[str, Any] = {}
    if levels:
        readings["battery"] = sum(levels) / len(levels)
        readings["on_battery"] = discharging and not any(mains)
        if readings["on_battery"] and watts:
            readings["battery_watts"] = watts
    elif mains:
        readings["on_battery"] = not any(mains)
    return readings


def _drawn(battery: Path) -> float:
    """Watts, from the power that some batteries report or the current and voltage that others do; 0: neither."""
    power = _number(battery / "power_now")
    if power is not None:
        return abs(power) / 1e6
    current, voltage = _number(battery / "current_now"), _number(battery / "voltage_now")
    return abs(current) * voltage / 1e12 if current is not None and voltage is not None else 0.0


def heat(root: Path) -> dict[str, Any]:
    """From /sys/class/thermal: the hottest zone by its own trip points; empty if no zone has any."""
    states = [
        state
        for zone in _entries(root / "sys/class/thermal")
        if zone.name.startswith("thermal_zone") and (state := _zone(zone)) is not None
    ]
    return {"thermal": _ORDER[max(states)]} if states else {}


def _zone(zone: Path) -> int | None:
    """The state of a zone as an index of `_ORDER`; None if it has no trip points."""
    now = _number(zone / "temp")
    trips: dict[str, float] = {}
    for path in _entries(zone):
        if path.name.startswith("trip_point_") and path.name.endswith("_type"):
            trip = _number(path.with_name(path.name.removesuffix("type") + "temp"))
            kind = _text(path)
            if trip is not None and trip > 0:
                trips[kind] = min(trip, trips.get(kind, trip))
    if now is None or not trips.keys() & {"passive", "hot", "critical"}:
        return None
    limit = trips.get("hot", trips.get("critical", float("inf")) - _NEAR)
    if now >= limit:
        return 3
    slows = trips.get("passive", limit - _NEAR)
    if now >= slows:
        return 2
    return 1 if now >= slows - _NEAR else 0


def profile(root: Path) -> dict[str, Any]:
    """The user's platform profile, if the firmware has profiles."""
    text = _text(root / "sys/firmware/acpi/platform_profile")
    return {"low_power": text in _SAVING} if text else {}


def display(root: Path) -> dict[str, Any]:
    """Whether a connected screen is on."""
    states = [
        _text(folder / "dpms") for folder in _entries(root / "sys/class/drm") if _text(folder / "status") == "connected"
    ]
    screens = [state == "On" for state in states if state]
    return {"display_on": any(screens)} if screens else {}


def idle() -> dict[str, Any]:
    """Seconds since logind's seat was last active; empty on a machine without a seat."""
    command = ("loginctl", "show-seat", "seat0", "--property=IdleHint", "--property=IdleSinceHintMonotonic")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError):
        return {}
    return idle_of(done.stdout, time.monotonic()) if done.returncode == 0 else {}


def idle_of(text: str, now: float) -> dict[str, Any]:
    """From loginctl's `NAME=value` lines; `now` in seconds of the monotonic clock."""
    properties = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    since = properties.get("IdleSinceHintMonotonic", "")
    if properties.get("IdleHint") == "no":
        return {"idle_s": 0.0}
    if properties.get("IdleHint") == "yes" and since.isdecimal():
        return {"idle_s": max(0.0, now - int(since) / 1e6)}
    return {}


SENSORS: Final = (supplies, heat, profile, display)


def _entries(folder: Path) -> Iterable[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> float | None:
    try:
        return float(_text(path))
    except ValueError:
        return None
