"""Energy used while something runs, where the operating system tells: NVML, Linux's RAPL, macOS's powermetrics.

It is the machine's energy (its GPUs', or its processor packages'), not one process's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from omlx.power.nvml import Nvml
from omlx.power.rapl import FOLDER, rapl_joules


class Energy:
    """`begin()`, then `joules()` for what was used since; None where the system does not report it.

    `rapl`: the folder of the counters of processor packages.
    """

    def __init__(self, rapl: Path = FOLDER) -> None:
        self._gpu = Nvml.open()
        self._rapl = rapl
        self._begun: float | None = None
        self._at = 0.0
        self._power: PowerMetrics | None = None

    @property
    def source(self) -> str:
        """What counts: "NVML", "RAPL", "powermetrics" or ""."""
        if self._gpu and self._gpu.joules() is not None:
            return "NVML"
        if rapl_joules(self._rapl) is not None:
            return "RAPL"
        return "powermetrics" if sys.platform == "darwin" and os.geteuid() == 0 else ""

    @property
    def missing(self) -> str:
        """Why there is no source, as a sentence for the user; "" where there is one."""
        if self.source:
            return ""
        if sys.platform == "darwin":
            return "this Mac reports its energy to root only: run `sudo omlx bench`"
        if self._rapl.is_dir() and any(self._rapl.glob("intel-rapl:*")):
            return f"the energy counters in {self._rapl} may be read by root only: run `sudo omlx bench`"
        return f"this machine does not report its energy: no NVIDIA driver, no energy counters in {self._rapl}"

    def begin(self) -> None:
        self._at = time.perf_counter()
        self._power = PowerMetrics.open()
        self._begun = self._counted()

    def joules(self) -> float | None:
        if self._power is not None:
            watts = self._power.watts()
            return None if watts is None else watts * (time.perf_counter() - self._at)
        now = self._counted()
        # A counter that ran over is worth nothing.
        return None if now is None or self._begun is None or now < self._begun else now - self._begun

    def _counted(self) -> float | None:
        joules = self._gpu.joules() if self._gpu else None
        return joules if joules is not None else rapl_joules(self._rapl)


class PowerMetrics:
    """macOS's powermetrics, which only root may run: mean power of CPU, GPU and ANE."""

    COMMAND = ("powermetrics", "--samplers", "cpu_power,gpu_power", "-i", "500")

    def __init__(self) -> None:
        self._process = subprocess.Popen(self.COMMAND, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    @classmethod
    def open(cls) -> PowerMetrics | None:
        if sys.platform != "darwin" or os.geteuid() != 0:
            return None
        try:
            return cls()
        except OSError:
            return None

    def watts(self) -> float | None:
        """End it and say the mean power since it was started."""
        self._process.terminate()
        text, _ = self._process.communicate()
        return mean_watts(text)


def mean_watts(text: str) -> float | None:
    """The mean of "Combined Power (CPU + GPU + ANE): 1234 mW" in powermetrics' output; None without one."""
    readings = [line.rpartition(":")[2].split() for line in text.splitlines() if line.startswith("Combined Power")]
    milliwatts = [float(words[0]) for words in readings if len(words) == 2 and words[1] == "mW"]
    return sum(milliwatts) / len(milliwatts) / 1000 if milliwatts else None
