"""Waits for the answer of a helper process and enforces its memory limit.

On Linux the kernel enforces a helper's memory limit. macOS accepts the limit but does not enforce it, so the process's
memory is measured while its answer is awaited.
"""

from __future__ import annotations

import select
import subprocess
import time

_LOOK_S = 0.1


def wait_for_answer(process: subprocess.Popen[bytes], due: float, most: int) -> None:
    """Wait until the process's stdout is readable or closed.

    Raises TimeoutError after `due` (of `time.monotonic`), or if the process uses more than `most` bytes of memory.
    """
    answer = process.stdout
    assert answer is not None
    while not select.select([answer], [], [], min(_LOOK_S, max(due - time.monotonic(), 0.0)))[0]:
        if time.monotonic() > due:
            raise TimeoutError
        if resident_bytes(process.pid) > most:
            raise TimeoutError


def resident_bytes(pid: int) -> int:
    """Resident memory of a process; 0 if it has ended."""
    import psutil  # rarely needed in a server, and not free to import

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0
