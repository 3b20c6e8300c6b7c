"""RAPL: the energy counters of processor packages in Linux's /sys. Usually only root may read them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path("/sys/class/powercap")
_LEAST_S: Final = 0.2
"""Shortest time between two readings that are used: the counters change about every millisecond."""


def rapl_joules(folder: Path = FOLDER) -> float | None:
    """Energy of all processor packages since an arbitrary moment; None where it cannot be read."""
    files = [path / "energy_uj" for path in folder.glob("intel-rapl:*") if path.name.count(":") == 1]
    try:
        return sum(int(file.read_text()) for file in files) / 1e6 if files else None
    except (OSError, ValueError):
        return None


class RaplPower:
    """A sensor: the mean power of the packages since the reading before."""

    def __init__(self, folder: Path = FOLDER, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock = folder, clock
        self._last: tuple[float, float] | None = None
        """Time and energy of the last reading."""
        self._watts: float | None = None

    def __call__(self) -> Mapping[str, Any]:
        now = self._clock()
        if self._last is None or now - self._last[0] >= _LEAST_S:
            joules = rapl_joules(self._folder)
            before, self._last = self._last, (now, joules) if joules is not None else None
            if joules is None:
                self._watts = None
            elif before is not None and joules >= before[1]:  # else the counter has wrapped around
                self._watts = (joules - before[1]) / (now - before[0])
        return {} if self._watts is None else {"cpu_watts": self._watts}
