"""Minutes of mixed work on more models than fit: memory stays under the cap, nothing stays open."""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path

import pytest

from omlx.pool.pressure import tree_bytes
from tests.pool.support import HELLO, answer, names, question, running_pool, spec, touch

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(900)]
SECONDS = float(os.environ.get("SOAK_SECONDS", "300"))
CAP = 1_500_000_000


async def test_a_mixed_soak_stays_under_its_cap(tmp_path: Path) -> None:
    models = [spec(name) for name in "abcd"]
    dice = random.Random(7)
    async with running_pool(
        tmp_path, max_loaded_models=2, max_process_memory=str(CAP), spare_runner=True, keep_alive=20.0
    ) as pool:
        counts = {"answered": 0, "cancelled": 0}

        async def client() -> None:
            while time.monotonic() < end:
                model = dice.choices(models, weights=[8, 4, 1, 1])[0]
                async with await pool.acquire(model) as lease:
                    for _ in range(dice.randint(1, 10)):
                        work = asyncio.create_task(answer(lease, question()))
                        if dice.random() < 0.2:
                            await asyncio.sleep(dice.random() * 0.05)
                            work.cancel()
                            await asyncio.gather(work, return_exceptions=True)
                            counts["cancelled"] += 1
                        else:
                            assert (await work)[0] == HELLO
                            counts["answered"] += 1

        async def watch() -> int:
            most = 0
            while time.monotonic() < end:
                most = max(most, tree_bytes())
                await asyncio.sleep(0.5)
            return most

        end = time.monotonic() + SECONDS
        *_, most = await asyncio.gather(*(client() for _ in range(8)), watch())
        assert most < CAP
        assert counts["answered"] > SECONDS
        assert pool.waiting == 0
        for model in models[:1]:
            await touch(pool, model)
        assert "a" in names(pool)
        assert all((model.users, model.running, model.waiting) == (0, 0, 0) for model in pool.loaded())
