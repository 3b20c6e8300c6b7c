"""Which models are loaded, and for how long: real runners, real time."""

from __future__ import annotations

import asyncio
import json
import math
from datetime import datetime, timedelta
from pathlib import Path

import psutil
import pytest

from omlx.messages.request import Finish
from omlx.pool import Pool, PoolError
from omlx.pool import pool as pool_module
from omlx.pool import spare as spare_module
from tests.pool.support import HELLO, answer, ask, exists, names, question, running_pool, spec, touch, until
from tests.support.processes import Children

pytestmark = pytest.mark.anyio
STORY = "Tell me a story."


children = Children()


@pytest.fixture(autouse=True)
def own_children() -> None:
    """Other tests of this worker may keep processes of theirs."""
    global children
    children = Children()


async def test_ten_requests_for_an_unloaded_model_cause_one_load_and_one_batch(tmp_path: Path) -> None:
    async with running_pool(tmp_path, max_concurrent_requests=10) as pool:
        assert await asyncio.gather(*(ask(pool, spec()) for _ in range(10))) == [HELLO] * 10
        (model,) = pool.loaded()
        assert model.heartbeat.max_batch > 1
        assert (model.users, model.running, model.waiting) == (0, 0, 0)


async def test_two_names_of_one_digest_share_a_runner(tmp_path: Path) -> None:
    async with running_pool(tmp_path) as pool:
        await touch(pool, spec("a"))
        async with await pool.acquire(spec("b", digest=spec("a").digest)) as lease:
            assert (await answer(lease, question()))[0] == HELLO
            assert lease.load_ns < 1_000_000_000
        assert len(pool.loaded()) == 1


async def test_keep_alive_as_ollama_defines_it(tmp_path: Path) -> None:
    async with running_pool(tmp_path, keep_alive=60.0) as pool:
        await touch(pool, spec())
        (model,) = pool.loaded()
        assert model.keep_alive == 60  # the setting, at load time
        assert timedelta(seconds=58) < model.expires_at - datetime.now().astimezone() < timedelta(seconds=60)
        await touch(pool, spec(), keep_alive=math.inf)
        await touch(pool, spec())  # absent keeps what is
        (model,) = pool.loaded()
        assert model.keep_alive == math.inf
        assert model.expires_at.year > 2300
        await touch(pool, spec(), keep_alive=0.2)
        assert names(pool) == {"tiny"}
        async with await pool.acquire(spec()):
            await asyncio.sleep(0.4)
            assert names(pool) == {"tiny"}  # a busy model does not expire; the timer starts when the last one leaves
        pid = pool.loaded()[0].pid
        await until(lambda: pool.loaded() == [])
        assert not exists(pid)
        await touch(pool, spec(), keep_alive=0)  # 0: gone as soon as the last request ends
        assert names(pool) == set()
        await until(lambda: pool.loaded() == [])


async def test_what_a_model_took_is_remembered_and_plans_its_next_load(tmp_path: Path) -> None:
    async with running_pool(tmp_path) as pool:
        await touch(pool, spec())
    (known,) = json.loads((tmp_path / "measured.json").read_text()).values()
    assert known["fixed"] > 300_000_000  # the process, the weights, and what reading a prompt needs beside them
    assert known["token"] > 0
    (tmp_path / "measured.json").write_text(json.dumps({f"{spec().digest} auto": {"fixed": 2**40, "token": 1}}))
    async with running_pool(tmp_path) as pool:
        loading = asyncio.create_task(touch(pool, spec()))
        await until(lambda: any(model.size >= 2**30 for model in pool.loaded()), within=60)
        await loading


async def test_an_idle_model_unloads_at_once_and_a_busy_one_after_its_requests(tmp_path: Path) -> None:
    async with running_pool(tmp_path) as pool:
        await pool.unload(spec().digest)  # not loaded: nothing to do
        await touch(pool, spec())
        await pool.unload(spec().digest)
        assert names(pool) == set()
        # A request that comes while the model leaves waits for a fresh load.
        async with await pool.acquire(spec()) as lease:
            (model,) = pool.loaded()
            await pool.unload(spec().digest)
            assert names(pool) == {"tiny"}
            assert pool.loaded()[0].expires_at <= datetime.now().astimezone()
            assert (await answer(lease, question()))[0] == HELLO
        await until(lambda: pool.loaded() == [])
        assert not exists(model.pid)


async def test_the_least_recently_used_idle_model_makes_room_and_a_pinned_one_never(tmp_path: Path) -> None:
    a, b, c = spec("a"), spec("b"), spec("c")
    async with running_pool(tmp_path, max_loaded_models=2, keep_alive=3600.0) as pool:
        await asyncio.gather(touch(pool, a), touch(pool, b))
        await touch(pool, a)
        await touch(pool, c)
        assert names(pool) == {"a", "c"}
        pool.pin(a)
        await touch(pool, b)
        assert names(pool) == {"a", "b"}
        pool.pin(b)
        with pytest.raises(PoolError, match="pinned"):
            await touch(pool, c)
        await touch(pool, a, keep_alive=0)
        assert names(pool) == {"a", "b"}  # pinned: it does not expire either
        await pool.unload(a.digest)  # but an explicit unload is obeyed
        await until(lambda: names(pool) == {"b"})
    async with running_pool(tmp_path) as pool:
        assert pool.pinned() == [a.full_name, b.full_name]  # pins survive a restart
        pool.pin(a, False)
        assert pool.pinned() == [b.full_name]


async def test_a_model_without_room_waits_for_a_busy_one_which_finishes_its_stream(tmp_path: Path) -> None:
    a, b = spec("a"), spec("b")
    async with running_pool(tmp_path, max_loaded_models=1) as pool:
        async with await pool.acquire(a) as lease:
            waiting = asyncio.create_task(ask(pool, b))
            await until(lambda: pool.loaded()[-1].expires_at <= datetime.now().astimezone(), within=30)
            late = asyncio.create_task(ask(pool, a))  # comes after b, so it waits behind b
            text, _ = await answer(lease, question(STORY, tokens=200))
            assert text.endswith("The end.")
            assert not waiting.done()
        assert await waiting == HELLO
        assert await late == HELLO
        assert names(pool) == {"a"}


async def test_loading_one_model_does_not_hold_up_another(tmp_path: Path) -> None:
    a, b = spec("a"), spec("b")
    async with running_pool(tmp_path) as pool:
        await touch(pool, a)
        loading = asyncio.create_task(touch(pool, b))
        await until(lambda: any(model.state == "loading" for model in pool.loaded()))
        async with await pool.acquire(a) as lease:
            assert lease.load_ns < 50_000_000
            assert (await answer(lease, question()))[0] == HELLO
        assert not loading.done()
        await loading


async def test_one_request_too_many_is_refused_with_ollamas_words(tmp_path: Path) -> None:
    async with running_pool(tmp_path, max_queue=2) as pool:
        waiting = [asyncio.create_task(ask(pool, spec())) for _ in range(2)]
        await asyncio.sleep(0)
        assert pool.waiting == 2
        with pytest.raises(PoolError) as failure:
            await pool.acquire(spec("b"))
        assert failure.value.kind == "busy"
        assert failure.value.message == "server busy, please try again.  maximum pending requests exceeded"
        assert await asyncio.gather(*waiting) == [HELLO] * 2
        # Requests for a loaded model with free places are no queue.
        async with await pool.acquire(spec()), await pool.acquire(spec()), await pool.acquire(spec()):
            assert pool.waiting == 0


async def test_a_model_over_a_cap_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    async with running_pool(tmp_path, max_model_memory="1GB") as pool:
        with pytest.raises(PoolError, match=r"requires more system memory .* than max_model_memory allows") as failure:
            await touch(pool, spec(size=2_000_000_000))
        assert failure.value.kind == "too_large"
        assert pool.loaded() == []
    async with running_pool(tmp_path, max_process_memory="2GB") as pool:
        with pytest.raises(PoolError, match=r"requires more system memory .* than max_process_memory allows"):
            await touch(pool, spec(size=4_000_000_000))


async def test_a_folder_that_is_no_model_fails_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    async with running_pool(tmp_path) as pool:
        with pytest.raises(PoolError) as failure:
            await touch(pool, spec(path=str(tmp_path / "empty")))
        assert failure.value.kind == "load_failed"
        assert "cannot be loaded" in failure.value.message
        assert pool.loaded() == []
        assert await ask(pool, spec()) == HELLO


async def test_the_spare_runner_makes_the_next_load_faster(tmp_path: Path) -> None:
    async with running_pool(tmp_path, spare_runner=True) as pool:
        async with await pool.acquire(spec("a")) as lease:
            cold = lease.load_ns
        await asyncio.sleep(cold / 1e9 + 1)
        async with await pool.acquire(spec("b")) as lease:
            assert lease.load_ns < cold / 2
            assert isinstance((await answer(lease, question()))[1], Finish)


async def test_a_load_that_is_given_up_leaves_its_process_for_the_next(tmp_path: Path) -> None:
    """Clients that leave while a process starts do not make the next load pay its imports."""
    async with running_pool(tmp_path, spare_runner=True) as pool:
        for name in ("a", "b", "c"):
            leaving = asyncio.create_task(touch(pool, spec(name)))
            await until(lambda: len(children()) == 1)
            (started,) = children()
            leaving.cancel()
            await asyncio.wait([leaving])
            await until(lambda: pool.loaded() == [])
            await until(lambda: pool._spare._host is not None)
            assert [child.pid for child in children()] == [started.pid]
        assert await ask(pool, spec("d")) == HELLO
        assert {model.pid for model in pool.loaded()} == {started.pid}


async def stopped_spare(pool: Pool, *, starting: bool) -> psutil.Process:
    """The spare runner, stopped before or after its imports."""
    taken = {model.pid for model in pool.loaded()}

    def spares() -> list[psutil.Process]:
        return [child for child in children() if child.pid not in taken]

    await until(lambda: len(spares()) == 1, within=60)
    if not starting:
        await until(lambda: pool._spare._host is not None and not pool._spare._host.starting, within=60)
    (spare,) = spares()
    spare.suspend()
    return spare


def has_ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("starting", [True, False])
async def test_a_spare_runner_that_hangs_holds_up_no_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starting: bool
) -> None:
    async with running_pool(tmp_path, spare_runner=True) as pool:
        if starting:
            monkeypatch.setattr(spare_module, "_IMPORTS_S", 3.0)
        await touch(pool, spec("a"))
        stopped = await stopped_spare(pool, starting=starting)
        monkeypatch.setattr(spare_module, "_IMPORTS_S", 3.0)  # not before: a busy machine takes longer for them
        assert await ask(pool, spec("b")) == HELLO
        assert stopped.pid not in {model.pid for model in pool.loaded()}
        await until(lambda: has_ended(stopped), within=60)


async def test_a_spare_runner_that_hangs_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((pool_module, "_SPARE_AFTER_S"), (pool_module, "_SPARE_CHECK_S"), (spare_module, "_ANSWER_S")):
        monkeypatch.setattr(module, name, 0.5)
    async with running_pool(tmp_path, spare_runner=True) as pool:
        stopped = await stopped_spare(pool, starting=False)
        await until(lambda: has_ended(stopped), within=60)
        await until(lambda: pool._spare._host is not None and pool._spare._host.pid != stopped.pid, within=60)
        assert await ask(pool, spec("a")) == HELLO
