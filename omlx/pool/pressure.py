"""*Pressure*: what to give up when the runners together take more memory than they may, and when to give it back.

The order is fixed: cached prefixes in RAM, then idle models, then new work. Running streams are never touched.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

import msgspec
import psutil

from omlx.pool.policy import Resident, idle_victims
from omlx.runner.host import RunnerHost

_SMALLEST = 1 / 32
_RELAXED = 0.8
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


def relieve(pressure: Pressure, residents: Sequence[Resident]) -> Relief:
    """One step of relief, decided about once a second: each step takes a while to show."""
    if pressure.used <= pressure.cap:
        relaxed = pressure.used < _RELAXED * pressure.cap
        return Relief(hot=min(1.0, max(pressure.hot, _SMALLEST) * 1.25) if relaxed else pressure.hot)
    if pressure.hot > 0:
        return Relief(hot=pressure.hot / 2 if pressure.hot > _SMALLEST else 0.0)
    victims = idle_victims(residents)
    if victims:
        return Relief(hot=0.0, evict=victims[0].digest)
    return Relief(hot=0.0, refuse=not any(resident.state == "leaving" for resident in residents))


def memory_of(hosts: Iterable[RunnerHost], *, gpu: bool) -> int:
    """Bytes that runners take: what MLX holds on a GPU, else their resident memory."""
    if gpu:
        return sum(host.heartbeat.memory_bytes for host in hosts)
    total = 0
    for host in hosts:
        with contextlib.suppress(psutil.Error):
            total += int(psutil.Process(host.pid).memory_info().rss)
    return total
