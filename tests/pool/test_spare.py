"""The spare runner takes the next load, and one that hangs holds up nobody. The runners are processes without MLX."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest

from omlx.pool import Pool
from omlx.pool import spare as spare_module
from tests.pool.support import ask, faulty, running_pool, spec, touch, until
from tests.support.processes import Children, has_begun

pytestmark = pytest.mark.anyio
HELLO = "Hello "
"""The runner echoes."""


@pytest.fixture
def children() -> Children:
    """Other tests of this worker may keep processes of theirs."""
    return Children()


def is_idle(pool: Pool) -> bool:
    """There is a spare, and it has done its imports."""
    return pool._spare._host is not None and not pool._spare._host.starting


async def test_the_next_load_takes_the_spare_runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare_module, "_ANSWER_S", 30.0)  # a busy machine answers late
    async with running_pool(tmp_path, command=faulty("none"), spare_runner=True) as pool:
        await touch(pool, spec("a"))
        await until(lambda: is_idle(pool))
        assert pool._spare._host is not None
        spare = pool._spare._host.pid
        assert await ask(pool, spec("b")) == HELLO
        assert spare in {model.pid for model in pool.loaded()}


async def test_a_load_that_is_given_up_leaves_its_process_for_the_next(tmp_path: Path, children: Children) -> None:
    """Clients that leave while a process starts do not make the next load pay its imports."""
    starting = tmp_path / "starting"
    starting.touch()
    async with running_pool(tmp_path, command=faulty(f"waits@{starting}"), spare_runner=True) as pool:
        for name in ("a", "b", "c"):
            leaving = asyncio.create_task(touch(pool, spec(name)))
            await until(lambda: len(children()) == 1)
            (started,) = children()
            leaving.cancel()
            await asyncio.wait([leaving])
            await until(lambda: pool.loaded() == [])
            await until(lambda: pool._spare._host is not None)
            assert [child.pid for child in children()] == [started.pid]
        starting.unlink()
        assert await ask(pool, spec("d")) == HELLO
        assert {model.pid for model in pool.loaded()} == {started.pid}


async def stopped_spare(pool: Pool, children: Children, *, starting: bool) -> psutil.Process:
    """The spare runner, stopped before or after its imports."""
    if not starting:
        await until(lambda: is_idle(pool))
    # A process that is stopped between fork and exec would hold up the thread that starts it.
    seen: list[psutil.Process] = []

    def only_it_runs() -> bool:
        seen[:] = children()
        return [has_begun(child.pid) for child in seen] == [True]

    await until(only_it_runs)
    (spare,) = seen
    spare.suspend()
    return spare


def has_ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("starting", [True, False])
async def test_a_spare_runner_that_hangs_holds_up_no_load(
    tmp_path: Path, children: Children, monkeypatch: pytest.MonkeyPatch, starting: bool
) -> None:
    monkeypatch.setattr(spare_module, "_FIRST_AFTER_S", 0.1)
    waits = tmp_path / "waits"
    if starting:
        waits.touch()
    async with running_pool(tmp_path, command=faulty(f"waits@{waits}"), spare_runner=True) as pool:
        stopped = await stopped_spare(pool, children, starting=starting)
        waits.unlink(missing_ok=True)
        monkeypatch.setattr(spare_module, "_IMPORTS_S", 1.0)  # not before: a busy machine takes longer for them
        assert await ask(pool, spec()) == HELLO
        assert stopped.pid not in {model.pid for model in pool.loaded()}
        await until(lambda: has_ended(stopped))


async def test_a_spare_runner_that_hangs_is_replaced(
    tmp_path: Path, children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in ((spare_module, "_FIRST_AFTER_S"), (spare_module, "_CHECK_EVERY_S")):
        monkeypatch.setattr(module, name, 0.1)
    async with running_pool(tmp_path, command=faulty("none"), spare_runner=True) as pool:
        stopped = await stopped_spare(pool, children, starting=False)
        monkeypatch.setattr(spare_module, "_ANSWER_S", 0.5)
        await until(lambda: has_ended(stopped))
        await until(lambda: pool._spare._host is not None and pool._spare._host.pid != stopped.pid)
        monkeypatch.setattr(spare_module, "_ANSWER_S", 30.0)  # a busy machine answers late
        assert await ask(pool, spec()) == HELLO


async def test_no_process_is_lost_where_one_comes_back_while_another_starts(children: Children) -> None:
    """The spare that was being started took the place of the one that had come back, which nobody ended."""
    spare = spare_module.Spare(faulty("none"), enabled=True)
    host = await spare.take()
    refilling = asyncio.create_task(spare.refill())
    while len(children()) < 2:
        await asyncio.sleep(0)
    assert not refilling.done()
    spare.keep(host)
    await refilling
    await until(lambda: len(children()) == 1)
    assert spare._host is host and [child.pid for child in children()] == [host.pid]
    await spare.close()
    await until(lambda: children() == [])
