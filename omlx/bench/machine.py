"""What a machine says about itself while a server on it is measured: its name and its memory.

Nothing here asks for rights that the user does not have: what the system does not tell is left out.
"""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
import threading
from pathlib import Path

import psutil

from omlx.power.nvml import Nvml

_SAMPLE_S = 1.0


def describe_machine() -> str:
    """One line: system, processor, cores, RAM, GPUs."""
    ram = psutil.virtual_memory().total / 2**30
    parts = [f"{platform.system()} {platform.machine()}", _processor(), f"{os.cpu_count()} cores, {ram:.0f} GiB"]
    if gpu := Nvml.open():
        parts.append(gpu.names())
    return ", ".join(part for part in parts if part)


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    if sys.platform == "darwin":
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            words = ["sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(words, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    return platform.processor()


def listener(port: int) -> int:
    """The process that listens on a port of this machine; 0 where the system does not tell."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            for connection in process.net_connections(kind="tcp"):
                if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
                    return int(process.pid)
    return 0


def tree_bytes(pid: int) -> int:
    """Resident memory of a process and all it has started. On Apple silicon not all that the GPU holds is in it."""
    total = 0
    with contextlib.suppress(psutil.Error):
        top = psutil.Process(pid)
        for process in [top, *top.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss
    return total


class Watch:
    """Looks at a server's memory while it is open (`with Watch(pid) as watch:`).

    Once a second: on a small machine a look takes time from the server that is measured.

    `peak_bytes` is the largest resident memory of the process tree (0 for process 0), `peak_gpu_bytes` the largest
    growth of used GPU memory (0 without an NVIDIA GPU).
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._gpu = Nvml.open()
        self._before = self._gpu_used()
        self.peak_bytes = 0
        self.peak_gpu_bytes = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, name="bench-watch", daemon=True)

    def _gpu_used(self) -> int:
        return self._gpu.used_bytes() if self._gpu else 0

    def _look(self) -> None:
        while True:
            if self._pid:
                self.peak_bytes = max(self.peak_bytes, tree_bytes(self._pid))
            self.peak_gpu_bytes = max(self.peak_gpu_bytes, self._gpu_used() - self._before)
            if self._end.wait(_SAMPLE_S):
                return

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
