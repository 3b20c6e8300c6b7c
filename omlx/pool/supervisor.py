"""The *supervisor* watches progress, not liveness: a runner that has work and does none is ended.

A process that hangs in a device call, or was stopped, still lives; only its steps tell. What happens to the requests of
an ended runner is the same whatever ended it: see `lease`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from omlx.pool.policy import is_stalled
from omlx.runner.host import RunnerHost
from omlx.units import format_duration


async def supervise(runners: Callable[[], Iterable[RunnerHost]], stall_timeout: float) -> None:
    """Runs until it is cancelled; `runners` gives those that are ready, anew each time."""
    interval = min(1.0, stall_timeout / 4)
    while True:
        await asyncio.sleep(interval)
        for host in runners():
            if host.alive and is_stalled(host.stalled_for, stall_timeout):
                span = format_duration(round(host.stalled_for, 1))
                why = f"it was killed: {host.open_requests} requests were open and nothing had moved for {span}"
                host.kill(why, "stalled")
