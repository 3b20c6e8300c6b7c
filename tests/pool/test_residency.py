"""Which models are loaded, and for how long. The runners are processes without MLX: here the pool decides."""

from __future__ import annotations

import asyncio
import math
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from omlx.pool import Pool, PoolError
from tests.pool.support import answer, ask, exists, faulty, names, question, running_pool, spec, touch, until

pytestmark = pytest.mark.anyio
HELLO = "Hello "
"""The runner echoes."""


def light_pool(folder: Path, fault: str = "none", **settings: Any) -> AbstractAsyncContextManager[Pool]:
    return running_pool(folder, command=faulty(fault), **settings)


async def test_two_names_of_one_digest_share_a_runner(tmp_path: Path) -> None:
    async with light_pool(tmp_path) as pool:
        async with await pool.acquire(spec("a")) as lease:
            cold = lease.load_ns
        (loaded,) = pool.loaded()
        async with await pool.acquire(spec("b", digest=spec("a").digest)) as lease:
            assert (await answer(lease, question()))[0] == HELLO
            assert lease.load_ns < cold
        assert [model.pid for model in pool.loaded()] == [loaded.pid]


async def test_keep_alive_as_ollama_defines_it(tmp_path: Path) -> None:
    async with light_pool(tmp_path, keep_alive=3600.0) as pool:
        await touch(pool, spec())
        (model,) = pool.loaded()
        assert model.keep_alive == 3600  # the setting, at load time
        assert timedelta(minutes=30) < model.expires_at - datetime.now().astimezone() < timedelta(hours=1)
        await touch(pool, spec(), keep_alive=math.inf)
        await touch(pool, spec())  # absent keeps what is
        (model,) = pool.loaded()
        assert model.keep_alive == math.inf
        assert model.expires_at.year > 2300
        async with await pool.acquire(spec(), keep_alive=0.2):
            await asyncio.sleep(0.4)
            assert names(pool) == {"tiny"}  # a busy model does not expire; the timer starts when the last one leaves
        await until(lambda: pool.loaded() == [])
        assert not exists(model.pid)
        await touch(pool, spec(), keep_alive=0)  # 0: gone as soon as the last request ends
        assert names(pool) == set()
        await until(lambda: pool.loaded() == [])


async def test_an_idle_model_unloads_at_once_and_a_busy_one_after_its_requests(tmp_path: Path) -> None:
    async with light_pool(tmp_path) as pool:
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
    async with light_pool(tmp_path, max_loaded_models=2, keep_alive=3600.0) as pool:
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
    async with light_pool(tmp_path) as pool:
        assert pool.pinned() == [a.full_name, b.full_name]  # pins survive a restart
        pool.pin(a, False)
        assert pool.pinned() == [b.full_name]


async def test_a_model_without_room_waits_for_a_busy_one_which_finishes_its_stream(tmp_path: Path) -> None:
    a, b = spec("a"), spec("b")
    async with light_pool(tmp_path, max_loaded_models=1) as pool:
        async with await pool.acquire(a) as lease:
            waiting = asyncio.create_task(ask(pool, b))
            await until(lambda: pool.loaded()[-1].expires_at <= datetime.now().astimezone())
            late = asyncio.create_task(ask(pool, a))  # comes after b, so it waits behind b
            text, _ = await answer(lease, question("Once upon a time there was a queue. The end."))
            assert text.endswith("The end. ")
            assert not waiting.done()
        assert await waiting == HELLO
        assert await late == HELLO
        assert names(pool) == {"a"}


async def test_loading_one_model_does_not_hold_up_another(tmp_path: Path) -> None:
    hangs = tmp_path / "hangs"
    async with light_pool(tmp_path, f"hangs-loading@{hangs}") as pool:
        await touch(pool, spec("a"))
        hangs.touch()
        loading = asyncio.create_task(touch(pool, spec("b")))
        await until(lambda: any(model.state == "loading" and model.pid for model in pool.loaded()))
        assert await ask(pool, spec("a")) == HELLO
        assert not loading.done()
        loading.cancel()
        await asyncio.wait([loading])


async def test_one_request_too_many_is_refused_with_ollamas_words(tmp_path: Path) -> None:
    async with light_pool(tmp_path, max_queue=2) as pool:
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
    async with light_pool(tmp_path, max_model_memory="1GB") as pool:
        with pytest.raises(PoolError, match=r"requires more system memory .* than max_model_memory allows") as failure:
            await touch(pool, spec(size=2_000_000_000))
        assert failure.value.kind == "too_large"
        assert pool.loaded() == []
    async with light_pool(tmp_path, max_process_memory="2GB") as pool:
        with pytest.raises(PoolError, match=r"requires more system memory .* than max_process_memory allows"):
            await touch(pool, spec(size=4_000_000_000))
