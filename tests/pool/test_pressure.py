"""Under memory pressure cached prefixes go first, then idle models, then new work; running streams never."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from omlx.messages.load_spec import RUNNER_OVERHEAD
from omlx.pool import PoolError
from omlx.pool import waiting as waiting_module
from omlx.pool.admission import Machine
from omlx.pool.policy import Resident
from omlx.pool.pressure import MemoryTaken, MemoryUsage, Pressure, Relief, relieve, tightest, tree_bytes
from tests.pool.support import answer, faulty, names, question, running_pool, spec, touch, until

IDLE = Resident(digest="idle")
BUSY = Resident(digest="busy", busy=True)


def pressure(used: int, hot: float = 1.0) -> Pressure:
    return Pressure(used=used, cap=100, hot=hot)


@pytest.mark.parametrize(
    ("found", "residents", "relief"),
    [
        (pressure(50), [BUSY], Relief(hot=1.0)),
        (pressure(90, hot=0.5), [BUSY], Relief(hot=0.5)),
        (pressure(50, hot=0.5), [BUSY], Relief(hot=0.625)),
        (pressure(101), [IDLE, BUSY], Relief(hot=0.5)),
        (pressure(101, hot=1 / 32), [IDLE, BUSY], Relief(hot=0.0)),
        (pressure(101, hot=0.0), [IDLE, BUSY], Relief(hot=0.0, evict="idle")),
        (pressure(101, hot=0.0), [BUSY], Relief(hot=0.0, refuse=True)),
        (pressure(101, hot=0.0), [BUSY, Resident(digest="x", state="leaving")], Relief(hot=0.0)),
        (pressure(101, hot=0.0), [Resident(digest="p", pinned=True)], Relief(hot=0.0, refuse=True)),
    ],
)
def test_what_is_given_up_comes_in_this_order(found: Pressure, residents: list[Resident], relief: Relief) -> None:
    assert relieve(found, residents) == relief


GB = 1_000_000_000
RAM = {"ram": 64 * GB, "available": 32 * GB}


@pytest.mark.parametrize(
    ("machine", "runners", "usage"),
    [
        (Machine(**RAM), [MemoryTaken(resident=5 * GB, device=4 * GB)], MemoryUsage(used=6 * GB, cap=56 * GB)),
        # CUDA: the device and the RAM have caps of their own, the tighter one counts
        (
            Machine(**RAM, device="cuda", device_memory=20 * GB),
            [MemoryTaken(resident=GB, device=12 * GB)],
            MemoryUsage(used=12 * GB, cap=19 * GB),
        ),
        (
            Machine(**RAM, device="cuda", device_memory=100 * GB),
            [MemoryTaken(resident=GB, device=1 * GB)],
            MemoryUsage(used=6 * GB, cap=56 * GB),
        ),
        # Apple silicon: what the system does not see is added, and the working-set limit is a cap too
        (
            Machine(**RAM, device="metal", device_memory=60 * GB),
            [MemoryTaken(resident=GB, device=12 * GB)],
            MemoryUsage(used=17 * GB + RUNNER_OVERHEAD, cap=56 * GB),
        ),
        (
            Machine(**RAM, device="metal", device_memory=13 * GB),
            [MemoryTaken(resident=13 * GB, device=12 * GB)],
            MemoryUsage(used=12 * GB, cap=13 * GB),
        ),
    ],
)
def test_the_memory_that_is_nearest_to_its_cap_counts(
    machine: Machine, runners: list[MemoryTaken], usage: MemoryUsage
) -> None:
    assert tightest(6 * GB, runners, machine, "auto") == usage


def test_relief_ends_and_cached_prefixes_come_back() -> None:
    hot, steps = 1.0, 0
    while hot > 0:
        hot, steps = relieve(pressure(101, hot), [BUSY]).hot, steps + 1
    assert steps < 10
    while hot < 1:
        hot, steps = relieve(pressure(10, hot), [BUSY]).hot, steps + 1
    assert steps < 40


@pytest.mark.anyio
async def test_an_idle_model_goes_when_the_runners_really_take_too_much(tmp_path: Path) -> None:
    """Each runner takes 400 MB more than anybody could have known; both were let in on an estimate."""
    settings = {"max_process_memory": str(tree_bytes() + 700_000_000), "hot_cache_max_size": "0"}
    async with running_pool(tmp_path, command=faulty("hungry"), **settings) as pool:
        await touch(pool, spec("a"))
        async with await pool.acquire(spec("b")):
            await until(lambda: names(pool) == {"b"})
            assert pool.loaded()[0].state in {"ready", "leaving"}
        await until(lambda: len(pool.loaded()) == 1)


@pytest.mark.anyio
async def test_the_buffers_that_mlx_keeps_on_a_gpu_count(tmp_path: Path) -> None:
    """Each runner says it holds 1.2 GB of a device with 2 GB, of which 95 % may be used."""
    async with running_pool(
        tmp_path, command=faulty("on-a-gpu"), hot_cache_max_size="0", max_process_memory="auto"
    ) as pool:
        await touch(pool, spec("a"))
        await until(lambda: pool.memory().used == 1_200_000_000)
        report = pool.memory()
        assert (report.device, report.device_memory, report.cap) == ("cuda", 2_000_000_000, 1_900_000_000)
        assert pool.loaded()[0].size_vram == 600_000_000
        await touch(pool, spec("b"))
        await until(lambda: names(pool) == {"b"})


@pytest.mark.anyio
async def test_new_work_waits_and_is_refused_while_nothing_else_can_give_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_module, "_HOLD_S", 0.3)
    settings = {"max_process_memory": str(tree_bytes() + 300_000_000), "hot_cache_max_size": "0"}
    async with running_pool(tmp_path, command=faulty("hungry"), **settings) as pool:
        async with await pool.acquire(spec()) as lease:
            await until(lambda: pool.short_of_memory)
            with pytest.raises(PoolError, match="server busy") as failure:
                await touch(pool, spec())
            assert failure.value.kind == "busy"
            assert (await answer(lease, question()))[0] == "Hello "  # what was let in goes on
            monkeypatch.setattr(waiting_module, "_HOLD_S", 60.0)
            waiting = asyncio.create_task(touch(pool, spec()))
            await until(lambda: pool.waiting == 1)
        await waiting  # the model that was in the way has gone, and this one has been loaded
