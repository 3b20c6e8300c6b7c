"""The *load watch*: a runner takes no more memory while it loads than its load may, whatever the files make it do.

What a load needs is known from the files only as far as they can be believed. So the resident memory of the process
is looked at many times a second, and a runner above its limit is killed. On Linux the kernel holds the limit between
two looks as well: the process cannot allocate more than what is left (RLIMIT_DATA, which counts what is reserved and
not used too, hence moves with every look). Once the model is loaded the limit is gone: from then on `pressure`
decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import resource
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import NamedTuple

import psutil

from omlx.messages.failures import LoadError
from omlx.messages.frames import Ready
from omlx.pool.admission import gib
from omlx.pool.errors import PoolError
from omlx.runner.host import RunnerHost

_EVERY_S = 0.02
_TREE_EVERY_S = 0.25
_SLACK = 0.03
"""Part of the limit that may be reserved beyond it: threads that start reserve more than they use."""
_OUT_OF_MEMORY = re.compile(r"MemoryError|bad_alloc|[Uu]nable to allocate|memory allocation|Cannot allocate memory")


class ProcessMemory(NamedTuple):
    """Memory of a process in bytes: `resident`, and `reserved` where the system says how much that is (else 0)."""

    resident: int
    reserved: int = 0


async def within(
    host: RunnerHost, limit: int, load: Awaitable[Ready], *, processes: int = 1, reserves: bool = True
) -> Ready:
    """The result of `load`, the load of `host`, which may take `limit` bytes in all its `processes` here together.

    `reserves` False: what the process reserves says nothing (a GPU's memory is mapped into it). Raises PoolError
    "too_large" where the load needs more, else what `load` raises.
    """
    watch = _Watch(host, limit, processes, reserves)
    task = asyncio.create_task(watch.run(), name=f"load watch of {host.pid}")
    try:
        return await load
    except LoadError as error:
        if watch.exceeded or _OUT_OF_MEMORY.search(error.message) or watch.was_near:
            raise PoolError("too_large", too_large(limit)) from error
        raise
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def too_large(limit: int) -> str:
    """What the client is told; it begins as other refusals for want of memory do."""
    return (
        f"model requires more system memory to load than it may take ({gib(limit)}): use a smaller model, or allow "
        "more with max_process_memory or max_model_memory; files that are damaged or hostile do this too"
    )


class _Watch:
    def __init__(self, host: RunnerHost, limit: int, processes: int, reserves: bool) -> None:
        self._host = host
        self._limit = limit
        self._alone = processes == 1
        self._reserves = reserves and self._alone
        self._most = 0
        self.exceeded = False

    @property
    def was_near(self) -> bool:
        """The runner ended by itself with most of its limit taken: what could not be allocated made it abort."""
        return not self._host.alive and self._most > self._limit // 2

    async def run(self) -> None:
        look = use_of if self._alone else tree_of
        reservation = _Reservation(self._host.pid, self._limit) if self._reserves else None
        try:
            while True:
                use = look(self._host.pid)
                self._most = max(self._most, use.resident)
                if use.resident > self._limit:
                    self.exceeded = True
                    self._host.kill(f"it was killed: {too_large(self._limit)}")
                    return
                if reservation is not None:
                    reservation.follow(use)
                await asyncio.sleep(_EVERY_S if self._alone else _TREE_EVERY_S)
        finally:
            if reservation is not None:
                reservation.end()


class _Reservation:
    """The kernel's limit of what a process may reserve. Nothing on systems that have none."""

    def __init__(self, pid: int, limit: int) -> None:
        self._pid = pid
        self._limit = limit
        self._before: tuple[int, int] | None = None
        if sys.platform == "linux":
            with contextlib.suppress(OSError, ValueError):  # the process has ended
                self._before = resource.prlimit(pid, resource.RLIMIT_DATA)

    def end(self) -> None:
        """The limit is again what it was."""
        if self._before is not None:
            self._set(*self._before)

    def follow(self, use: ProcessMemory) -> None:
        """Allow what is left."""
        if self._before is None or not use.reserved:
            return
        soft, hard = self._before
        allowed = use.reserved + max(0, self._limit - use.resident) + int(self._limit * _SLACK)
        for most in (soft, hard):
            allowed = allowed if most == resource.RLIM_INFINITY else min(allowed, most)
        self._set(allowed, hard)

    def _set(self, soft: int, hard: int) -> None:
        if sys.platform == "linux":
            with contextlib.suppress(OSError, ValueError):  # the process has ended
                resource.prlimit(self._pid, resource.RLIMIT_DATA, (soft, hard))


def use_of(pid: int) -> ProcessMemory:
    """What a process takes now; nothing where it is gone."""
    try:
        if sys.platform != "linux":
            return ProcessMemory(int(psutil.Process(pid).memory_info().rss))
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (OSError, psutil.Error):
        return ProcessMemory(0)
    kib = {name: text.split()[0] for name, _, text in (line.partition(":") for line in lines) if name.startswith("Vm")}
    return ProcessMemory(int(kib.get("VmRSS", 0)) * 1024, int(kib.get("VmData", 0)) * 1024)


def tree_of(pid: int) -> ProcessMemory:
    """What a process and everything that it has started take now: the ranks of a distributed model."""
    with contextlib.suppress(psutil.Error):
        children = psutil.Process(pid).children(recursive=True)
        return ProcessMemory(sum(use_of(process).resident for process in (pid, *(child.pid for child in children))))
    return ProcessMemory(0)
