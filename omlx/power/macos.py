"""macOS: `pmset` and `ioreg`, which every Mac has, and Foundation where PyObjC is installed."""

from __future__ import annotations

import re
import subprocess
from importlib import import_module
from typing import Any, Final

_TIMEOUT_S: Final = 5.0
_THERMAL: Final = ("nominal", "fair", "serious", "critical")


def supplies() -> dict[str, Any]:
    return supplies_of(_output("pmset", "-g", "batt"))


def supplies_of(text: str) -> dict[str, Any]:
    """From `pmset -g batt`: `Now drawing from 'Battery Power'` and `…	85%; discharging; …`."""
    supplies: dict[str, Any] = {}
    source = re.search(r"drawing from '([^']+)'", text)
    if source:
        supplies["on_battery"] = source[1] == "Battery Power"
    if level := re.search(r"\t(\d{1,3})%;", text):
        supplies["battery"] = min(int(level[1]), 100) / 100
    return supplies


def idle() -> dict[str, Any]:
    return idle_of(_output("ioreg", "-c", "IOHIDSystem", "-d", "4"))


def idle_of(text: str) -> dict[str, Any]:
    """From `ioreg -c IOHIDSystem`: `"HIDIdleTime" = 1234567890`, nanoseconds."""
    times = [int(digits) for digits in re.findall(r'"HIDIdleTime" = (\d+)', text)]
    return {"idle_s": min(times) / 1e9} if times else {}


def heat_and_mode() -> dict[str, Any]:
    """From NSProcessInfo; without PyObjC only the mode, from `pmset -g`."""
    try:
        info = import_module("Foundation").NSProcessInfo.processInfo()
        state, saving = int(info.thermalState()), bool(info.isLowPowerModeEnabled())
    except (ImportError, AttributeError):
        return mode_of(_output("pmset", "-g"))
    return {"thermal": _THERMAL[min(max(state, 0), 3)], "low_power": saving}


def mode_of(text: str) -> dict[str, Any]:
    """From `pmset -g`: ` lowpowermode         1`."""
    mode = re.search(r"^\s*lowpowermode\s+(\d)", text, re.MULTILINE)
    return {"low_power": mode[1] != "0"} if mode else {}


def display() -> dict[str, Any]:
    """Whether the main display is awake, where PyObjC's Quartz is installed."""
    try:
        quartz = import_module("Quartz")
        return {"display_on": not quartz.CGDisplayIsAsleep(quartz.CGMainDisplayID())}
    except (ImportError, AttributeError):
        return {}


def battery_power() -> dict[str, Any]:
    return battery_power_of(_output("ioreg", "-r", "-n", "AppleSmartBattery"))


def battery_power_of(text: str) -> dict[str, Any]:
    """From ioreg: `"Voltage" = 11987`, mV, and `"InstantAmperage" = …`, mA, below 0 (modulo 2^64) while discharging."""
    values = {name: int(digits) for name, digits in re.findall(r'"(Voltage|InstantAmperage)" = (\d+)', text)}
    milliamperes = values.get("InstantAmperage", 0)
    if '"ExternalConnected" = No' not in text or milliamperes < 1 << 63:
        return {}
    return {"battery_watts": ((1 << 64) - milliamperes) * values.get("Voltage", 0) / 1e6}


SENSORS: Final = (supplies, heat_and_mode, idle, display, battery_power)


def _output(*command: str) -> str:
    """The output of a command; "" if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""
