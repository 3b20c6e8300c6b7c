"""Loads of the real runner: shared by those who wait, measured and remembered, refused with a sentence."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from omlx.pool import PoolError
from tests.pool.support import HELLO, ask, faulty, running_pool, spec, touch, until

pytestmark = pytest.mark.anyio


async def test_ten_requests_for_an_unloaded_model_cause_one_load_and_one_batch(tmp_path: Path) -> None:
    async with running_pool(tmp_path, max_concurrent_requests=10) as pool:
        assert await asyncio.gather(*(ask(pool, spec()) for _ in range(10))) == [HELLO] * 10
        (model,) = pool.loaded()
        assert model.heartbeat.max_batch > 1
        assert (model.users, model.running, model.waiting) == (0, 0, 0)


async def test_what_a_model_took_is_remembered_and_plans_its_next_load(tmp_path: Path) -> None:
    async with running_pool(tmp_path) as pool:
        await touch(pool, spec())
    (known,) = json.loads((tmp_path / "measured.json").read_text()).values()
    assert known["fixed"] > 300_000_000  # the process, the weights, and what reading a prompt needs beside them
    assert known["token"] > 0
    (tmp_path / "measured.json").write_text(json.dumps({f"{spec().digest} auto": {"fixed": 2**40, "token": 1}}))
    async with running_pool(tmp_path, command=faulty("slow-load")) as pool:
        loading = asyncio.create_task(touch(pool, spec()))
        await until(lambda: any(model.size >= 2**30 for model in pool.loaded()))
        await loading


async def test_a_folder_that_is_no_model_fails_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    async with running_pool(tmp_path) as pool:
        with pytest.raises(PoolError) as failure:
            await touch(pool, spec(path=str(tmp_path / "empty")))
        assert failure.value.kind == "load_failed"
        assert "cannot be loaded" in failure.value.message
        assert pool.loaded() == []
