"""Readings: what the sensors of this machine say at one moment; a sensor that is not there says nothing.

Each sensor is optional. `sensors()` opens those of this machine once; `Sensors.read` asks them, which takes
milliseconds on Linux and some tens of them on a Mac, where commands are asked: do it beside the event loop.
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
    """None: nothing here says so."""

    on_battery: bool | None = None
    battery: float | None = None
    """How full, 0 to 1."""
    thermal: Thermal | None = None
    """As macOS has it: from "fair" on fans are heard, from "serious" on the machine slows itself down."""
    low_power: bool | None = None
    """The user chose to save power (Low Power Mode, a quiet platform profile)."""
    idle_s: float | None = None
    """Since the user last touched keyboard or pointer."""
    display_on: bool | None = None
    gpu_watts: float | None = None
    gpu_throttled: bool | None = None
    """Heat or a power limit holds a GPU's clock down."""


Sensor = Callable[[], Mapping[str, Any]]
"""Reads some fields of `Readings`; what it does not find it leaves out. It never raises."""


class Sensors:
    """The sensors of this machine."""

    def __init__(self, found: list[Sensor]) -> None:
        self._found = found

    def read(self) -> Readings:
        values: dict[str, Any] = {}
        for sensor in self._found:
            values |= sensor()
        return Readings(**values)

    def absent(self, readings: Readings) -> list[str]:
        """The fields that nothing here tells, as words for the user."""
        return [text for name, text in _NAMES.items() if getattr(readings, name) is None]


_NAMES = {
    "on_battery": "mains or battery",
    "thermal": "heat",
    "low_power": "low-power mode",
    "idle_s": "user activity",
    "display_on": "the display",
    "gpu_watts": "power of the GPU",
}


def sensors(root: Path = Path("/")) -> Sensors:
    """Open what this machine has. `root`: where /sys is, for tests."""
    found: list[Sensor] = []
    if sys.platform == "darwin":
        found = [*macos.SENSORS]
    elif sys.platform.startswith("linux"):
        found = [*(partial(read, root) for read in linux.SENSORS), linux.idle]
    gpu = Nvml.open()
    if gpu is not None:
        found.append(partial(_gpu, gpu))
    return Sensors(found)


def _gpu(gpu: Nvml) -> dict[str, Any]:
    told = {"gpu_watts": gpu.watts(), "gpu_throttled": gpu.throttled()}
    return {name: value for name, value in told.items() if value is not None}
