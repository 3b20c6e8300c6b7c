"""Under memory pressure cached prefixes go first, then idle models, then new work; running streams never."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from omlx.pool import PoolError
from omlx.pool.policy import Resident
from omlx.pool.pressure import Pressure, Relief, relieve
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
    settings = {"max_process_memory": "700MB", "hot_cache_max_size": "0"}
    async with running_pool(tmp_path, command=faulty("hungry"), **settings) as pool:
        await touch(pool, spec("a"))
        async with await pool.acquire(spec("b")):
            await until(lambda: names(pool) == {"b"}, within=10)
            assert pool.loaded()[0].state in {"ready", "leaving"}
        await until(lambda: len(pool.loaded()) == 1)


@pytest.mark.anyio
async def test_new_work_is_refused_while_nothing_else_can_give_way(tmp_path: Path) -> None:
    settings = {"max_process_memory": "400MB", "hot_cache_max_size": "0"}
    async with running_pool(tmp_path, command=faulty("hungry"), **settings) as pool:
        async with await pool.acquire(spec()) as lease:
            await asyncio.sleep(1.5)
            with pytest.raises(PoolError, match="server busy") as failure:
                await touch(pool, spec())
            assert failure.value.kind == "busy"
            assert (await answer(lease, question()))[0] == "Hello "  # what was let in goes on
        await until(lambda: pool.loaded() == [], within=5)
        await touch(pool, spec())
