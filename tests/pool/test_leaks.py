"""Loading and unloading for ever leaves nothing behind in the server: no process, socket, task or memory."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from tests.pool.support import HELLO, ask, faulty, running_pool, spec

pytestmark = pytest.mark.anyio


class Held(NamedTuple):
    """What this process holds. Grandchildren do not count: they belong to servers that other tests left running."""

    descriptors: int
    children: int
    tasks: int

    def more_than(self, before: Held, *, slack: int) -> list[str]:
        """What there is more of than before. `slack` descriptors may come and go with servers of other tests that live
        in this process; a leak in every cycle exceeds it.
        """
        limits = (before.descriptors + slack, before.children, before.tasks)
        return [name for name, now, limit in zip(self._fields, self, limits, strict=True) if now > limit]


def held() -> Held:
    gc.collect()
    me = psutil.Process()
    return Held(me.num_fds(), len(me.children()), len(asyncio.all_tasks()))


@pytest.mark.parametrize("cycles", [8, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("fault", ["none", "dies-in-stream"])
async def test_cycles_of_load_and_unload_leave_nothing_behind(tmp_path: Path, cycles: int, fault: str) -> None:
    async with running_pool(tmp_path, command=faulty(fault), keep_alive=0.0) as pool:

        async def cycle() -> None:
            await asyncio.gather(*(ask(pool, spec(name)) for name in ("a", "b")), return_exceptions=True)
            while pool.loaded():
                await asyncio.sleep(0.005)

        for _ in range(5):
            await cycle()
        before, memory = held(), psutil.Process().memory_info().rss
        for _ in range(cycles):
            await cycle()
        assert held().more_than(before, slack=cycles // 4) == []
        assert psutil.Process().memory_info().rss - memory < 20_000_000
        assert pool.waiting == 0


async def test_a_real_runner_gives_its_memory_back(tmp_path: Path) -> None:
    async with running_pool(tmp_path, keep_alive=0.0) as pool:
        before = held()
        for _ in range(2):
            assert await ask(pool, spec()) == HELLO
            while pool.loaded():
                await asyncio.sleep(0.01)
        assert held().more_than(before, slack=1) == []
