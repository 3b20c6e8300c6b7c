"""What the pool's tests share: specs of tiny models, a pool that is closed again, and short questions to it."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from omlx_registry import ModelSpec
from omlx_registry.spec import Details

from omlx.messages.request import Delta, Finish, GenerateRequest, Limits, Message, Sampling
from omlx.pool import Lease, Pool
from omlx.runner.process import RUNNER
from omlx.settings import Settings
from tests.support.tiny import tiny_model

HELLO = "Hello! How can I help you today?"
"""What the taught model answers to `question()`."""
FAULTY = Path(__file__).parents[1] / "runner" / "faulty_runner.py"


def faulty(fault: str) -> list[str]:
    """The command of a runner with this fault."""
    return [sys.executable, str(FAULTY), fault]


def spec(name: str = "tiny", *, path: str | None = None, **changes: Any) -> ModelSpec:
    """A spec over the taught tiny model: every name is a model of its own to the pool."""
    folder = path or str(tiny_model("qwen3", taught=True))
    fields: dict[str, Any] = {
        "name": f"{name}:latest",
        "full_name": f"registry.ollama.ai/library/{name}:latest",
        "digest": name.ljust(64, "0"),
        "path": folder,
        "fingerprint": "f" * 64,
        "size": 800_000,
        "modified_at": datetime.now().astimezone(),
        "details": Details(),
        "capabilities": ["completion"],
        "context_length": 4096,
        **changes,
    }
    return ModelSpec(**fields)


@asynccontextmanager
async def running_pool(
    folder: Path, *, command: Sequence[str] = RUNNER, grace: float = 12.0, **settings: Any
) -> AsyncIterator[Pool]:
    """A pool with the real runner unless `command` says otherwise; no process of it is left behind."""
    defaults: dict[str, Any] = {
        "models": str(folder),
        "paged_ssd_cache_dir": str(folder / "kv"),
        "spare_runner": False,
        "max_process_memory": "90%",
        "hot_cache_max_size": "64MB",
    }
    pool = Pool(Settings(**{**defaults, **settings}), command=command, grace=grace)
    await pool.start()
    pids: set[int] = set()
    try:
        yield pool
    finally:
        pids.update(model.pid for model in pool.loaded() if model.pid)
        await pool.close()
        assert not [pid for pid in pids if exists(pid)]


def question(text: str = "Hello", *, tokens: int = 40, **changes: Any) -> GenerateRequest:
    return GenerateRequest(
        id=0,
        messages=[Message("user", text)],
        sampling=Sampling(temperature=0),
        limits=Limits(num_predict=tokens),
        **changes,
    )


async def answer(lease: Lease, request: GenerateRequest) -> tuple[str, Finish]:
    """The whole text and the last event."""
    parts: list[str] = []
    async for event in lease.generate(request):
        if isinstance(event, Finish):
            return "".join(parts), event
        assert isinstance(event, Delta)
        parts.append(event.content)
    raise AssertionError("a generation ended without a Finish")


async def ask(pool: Pool, model: ModelSpec, *, keep_alive: float | None = None) -> str:
    async with await pool.acquire(model, keep_alive=keep_alive) as lease:
        return (await answer(lease, question()))[0]


async def touch(pool: Pool, model: ModelSpec, *, keep_alive: float | None = None) -> None:
    """Load only."""
    async with await pool.acquire(model, keep_alive=keep_alive):
        pass


def names(pool: Pool) -> set[str]:
    """Names of the models that are ready."""
    return {model.spec.name.partition(":")[0] for model in pool.loaded() if model.state == "ready"}


async def until(condition: Callable[[], bool], *, within: float = 120.0) -> None:
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < within, "it did not happen in time"
        await asyncio.sleep(0.01)


def exists(pid: int) -> bool:
    """The process is there and is no zombie of ours."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
