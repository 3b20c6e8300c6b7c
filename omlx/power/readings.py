"""Readings: the values of this machine's sensors at one moment. Each sensor is optional.

`sensors()` opens the sensors once. `Sensors.read` reads them, which takes milliseconds on Linux and tens of
milliseconds on macOS, where it runs commands: call it in a thread, not on the event loop.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from omlx.power import linux, macos
from omlx.power.nvml import Nvml
from omlx.power.rapl import RaplPower

log = logging.getLogger("omlx.power")

Thermal = Literal["nominal", "fair", "serious", "critical"]
_MOST_OF_THE_TIME: Final = 0.01
"""Largest part of the time that reading one sensor may take: a slow one is read less often."""


class Readings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
    cpu_watts: float | None = None
    """Of the processor packages."""
    battery_watts: float | None = None
    """What the whole machine draws from its battery."""

    @property
    def watts(self) -> float | None:
        """Power of processors and GPUs as far as known; where neither is, what is drawn from the battery."""
        parts = [watts for watts in (self.cpu_watts, self.gpu_watts) if watts is not None]
        return sum(parts) if parts else self.battery_watts


Sensor = Callable[[], Mapping[str, Any]]
"""Returns some fields of `Readings`, without those it cannot read. It never raises."""


class _Timed:
    """A sensor that is read no more often than its cost allows; in between it has its last values."""

    def __init__(self, sensor: Sensor, clock: Callable[[], float]) -> None:
        self._sensor, self._clock = sensor, clock
        self._values: Mapping[str, Any] = {}
        self._due = 0.0

    def read(self) -> Mapping[str, Any]:
        begun = self._clock()
        if begun >= self._due:
            self._values = self._sensor()
            ended = self._clock()
            self._due = ended + (ended - begun) / _MOST_OF_THE_TIME
        return self._values


class Sensors:
    """The sensors of this machine, or the file that replaces them."""

    def __init__(self, available: Sequence[Sensor], clock: Callable[[], float] = time.monotonic) -> None:
        self._available = [_Timed(sensor, clock) for sensor in available]

    def read(self) -> Readings:
        values: dict[str, Any] = {}
        for sensor in self._available:
            values |= sensor.read()
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
    "watts": "power",
}


def sensors(file: str = "", root: Path = Path("/")) -> Sensors:
    """Open the sensors of this machine. `file`: a file of readings that replaces them all (setting `power_readings`).

    `root`: the folder that has /sys, for tests.
    """
    if file:
        return Sensors([ReadingsFile(Path(file))])
    available: list[Sensor] = []
    if sys.platform == "darwin":
        available = [*macos.SENSORS]
    elif sys.platform.startswith("linux"):
        rapl = RaplPower(root / "sys/class/powercap")
        available = [*(partial(read, root) for read in linux.SENSORS), linux.idle, rapl]
    gpu = Nvml.open()
    if gpu is not None:
        available.append(partial(_gpu, gpu))
    return Sensors(available)


class ReadingsFile:
    """A JSON file with fields of `Readings`, read anew each time. Without the file there is no sensor."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._problem = ""

    def __call__(self) -> Mapping[str, Any]:
        try:
            readings = msgspec.json.decode(self._path.read_bytes(), type=Readings)
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            problem = (error.strerror or "") if isinstance(error, OSError) else str(error)
            if problem != self._problem:
                log.warning("the file of power readings %s cannot be used: %s", self._path, problem)
            self._problem = problem
            return {}
        self._problem = ""
        return {name: value for name, value in msgspec.structs.asdict(readings).items() if value is not None}


def _gpu(gpu: Nvml) -> dict[str, Any]:
    values = {"gpu_watts": gpu.watts(), "gpu_throttled": gpu.throttled()}
    return {name: value for name, value in values.items() if value is not None}
