"""*Pressure*: what to give up when everything together takes more memory than it may, and when to give it back.

The order is fixed: cached prefixes in RAM, then idle models, then new work. Running streams are never touched. What
is measured is the whole process tree, and what MLX holds on a GPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

import msgspec
import psutil

from omlx.messages.load_spec import RUNNER_OVERHEAD
from omlx.pool.admission import Machine, parse_cap
from omlx.pool.policy import Resident, idle_victims
from omlx.runner.host import RunnerHost

_SMALLEST = 1 / 32
RELAXED = 0.8
"""Below this part of the cap, cached prefixes may grow again."""


class Pressure(msgspec.Struct, frozen=True, kw_only=True):
    """`used` and `cap` in bytes; `hot` is the part of their budget that cached prefixes may use now, 0 to 1."""

    used: int
    cap: int
    hot: float


class Relief(msgspec.Struct, frozen=True, kw_only=True):
    """What to do: the new part for cached prefixes, the idle model that goes, whether new work is held back."""

    hot: float
    evict: str | None = None
    refuse: bool = False


class MemoryUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of one kind of memory: taken, and allowed."""

    used: int
    cap: int

    @property
    def share(self) -> float:
        return self.used / max(1, self.cap)


class MemoryTaken(msgspec.Struct, frozen=True, kw_only=True):
    """What one runner takes. Bytes."""

    resident: int
    """Of RAM, as the system counts it."""
    device: int
    """What MLX holds, freed buffers included; on a CPU that is part of `resident`."""


def relieve(pressure: Pressure, residents: Sequence[Resident]) -> Relief:
    """One step of relief, decided about once a second: each step takes a while to show."""
    if pressure.used <= pressure.cap:
        relaxed = pressure.used < RELAXED * pressure.cap
        return Relief(hot=min(1.0, max(pressure.hot, _SMALLEST) * 1.25) if relaxed else pressure.hot)
    if pressure.hot > 0:
        return Relief(hot=pressure.hot / 2 if pressure.hot > _SMALLEST else 0.0)
    victims = idle_victims(residents)
    if victims:
        return Relief(hot=0.0, evict=victims[0].digest)
    return Relief(hot=0.0, refuse=not any(resident.state == "leaving" for resident in residents))


def tightest(tree: int, runners: Sequence[MemoryTaken], machine: Machine, setting: str) -> MemoryUsage:
    """The memory that is nearest to its cap. `tree` is `tree_bytes()`, `setting` max_process_memory.

    On a CPU there is RAM only. A CUDA device has memory of its own, with a cap of its own. On Apple silicon both are
    the same RAM, but the system does not count all of what MLX holds as resident: the larger figure counts, and what
    the device may use (the working-set limit) is a second cap.
    """
    held = sum(runner.device for runner in runners)
    if machine.device == "cpu":
        return MemoryUsage(used=tree, cap=parse_cap(setting, machine))
    ram = Machine(ram=machine.ram, available=machine.available)
    if machine.device == "metal":
        unseen = sum(max(0, runner.device + RUNNER_OVERHEAD - runner.resident) for runner in runners)
        kinds = [
            MemoryUsage(used=tree + unseen, cap=parse_cap(setting, ram)),
            MemoryUsage(used=held, cap=machine.device_memory),
        ]
    else:
        kinds = [
            MemoryUsage(used=tree, cap=parse_cap(setting, ram)),
            MemoryUsage(used=held, cap=parse_cap(setting, machine)),
        ]
    return max(kinds, key=lambda usage: usage.share)


def taken_by(hosts: Iterable[RunnerHost]) -> list[MemoryTaken]:
    """What runners take now."""
    return [
        MemoryTaken(resident=resident(host.pid), device=host.heartbeat.memory_bytes + host.heartbeat.buffer_bytes)
        for host in hosts
    ]


def tree_bytes() -> int:
    """Resident memory of this process and everything it has started: runners, the spare, workers."""
    me = psutil.Process()
    processes = [me]
    with contextlib.suppress(psutil.Error):
        processes += me.children(recursive=True)
    return sum(_resident(process) for process in processes)


def resident(pid: int | None = None) -> int:
    """Resident memory of a process (None: this one); 0 where it is gone."""
    try:
        return _resident(psutil.Process(pid))
    except psutil.Error:
        return 0


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0
