"""Waiting for the answer of a helper process that is not to take more than it may.

On Linux the kernel keeps a helper's limit of memory. macOS takes the same limit and does not keep it, so what the
process really has is looked at while its answer is awaited.
"""

from __future__ import annotations

import select
import subprocess
import time

_LOOK_S = 0.1


def wait_for_answer(process: subprocess.Popen[bytes], due: float, most: int) -> None:
    """Until there is something to read from its stdout, or its end.

    Raises TimeoutError: it is past `due` (of `time.monotonic`), or the process has more than `most` bytes in memory.
    """
    answer = process.stdout
    assert answer is not None
    while not select.select([answer], [], [], min(_LOOK_S, max(due - time.monotonic(), 0.0)))[0]:
        if time.monotonic() > due:
            raise TimeoutError
        if resident_bytes(process.pid) > most:
            raise TimeoutError


def resident_bytes(pid: int) -> int:
    """What a process has in memory; 0 where it has ended."""
    import psutil  # rarely needed in a server, and not free to import

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0
