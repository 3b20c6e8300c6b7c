"""Readings: the values of this machine's sensors at one moment. Each sensor is optional.

`sensors()` opens the sensors once. `Sensors.read` reads them, which takes milliseconds on Linux and tens of
milliseconds on macOS, where it runs commands: call it in a thread, not on the event loop.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec

from omlx.power import linux, macos
from omlx.power.nvml import Nvml

Thermal = Literal["nominal", "fair", "serious", "critical"]


class Readings(msgspec.Struct, frozen=True, kw_only=True):
    """None: this machine has no such sensor."""

    on_battery: bool | None = None
    battery: float | None = None
    """Charge, 0 to 1."""
    thermal: Thermal | None = None
    """macOS's states: fans are audible from "fair" on, the machine throttles from "serious" on."""
    low_power: bool | None = None
    """The user chose to save power (Low Power Mode, a quiet platform profile)."""
    idle_s: float | None = None
    """Seconds since the last keyboard or pointer input."""
    display_on: bool | None = None
    gpu_watts: float | None = None
    gpu_throttled: bool | None = None
    """Temperature or a power limit throttles a GPU."""


Sensor = Callable[[], Mapping[str, Any]]
"""Returns some fields of `Readings`, without those it cannot read. It never raises."""


class Sensors:
    """The sensors of this machine."""

    def __init__(self, available: list[Sensor]) -> None:
        self._available = available

    def read(self) -> Readings:
        values: dict[str, Any] = {}
        for sensor in self._available:
            values |= sensor()
        return Readings(**values)

    def absent(self, readings: Readings) -> list[str]:
        """The fields without a sensor, as text for the user."""
        return [text for name, text in _NAMES.items() if getattr(readings, name) is None]


_NAMES = {
    "on_battery": "mains or battery",
    "thermal": "temperature",
    "low_power": "low-power mode",
    "idle_s": "user activity",
    "display_on": "display",
    "gpu_watts": "GPU power",
}


def sensors(root: Path = Path("/")) -> Sensors:
    """Open the sensors of this machine. `root`: the folder that has /sys, for tests."""
    available: list[Sensor] = []
    if sys.platform == "darwin":
        available = [*macos.SENSORS]
    elif sys.platform.startswith("linux"):
        available = [*(partial(read, root) for read in linux.SENSORS), linux.idle]
    gpu = Nvml.open()
    if gpu is not None:
        available.append(partial(_gpu, gpu))
    return Sensors(available)


def _gpu(gpu: Nvml) -> dict[str, Any]:
    values = {"gpu_watts": gpu.watts(), "gpu_throttled": gpu.throttled()}
    return {name: value for name, value in values.items() if value is not None}
