"""Work limits in a real runner process: who waits, who does not, and that a runner that rests is not a stalled one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from omlx.messages.frames import Embed
from omlx.messages.load_spec import EngineConfig, LoadSpec
from omlx.messages.work_limits import UNLIMITED, WorkLimits
from omlx.runner.host import RunnerHost
from tests.runner.test_runner import load_spec, request, run
from tests.support.lessons import lesson
from tests.support.tiny_encoder import make_encoder

pytestmark = pytest.mark.anyio
STORY = request("Tell me a story.", think=False, tokens=200)


@asynccontextmanager
async def loaded(spec: LoadSpec) -> AsyncIterator[RunnerHost]:
    host = await RunnerHost.spawn()
    try:
        await host.load(spec, stall_timeout=120)
        yield host
    finally:
        await host.close()


def of_class(priority: Any) -> Any:
    return request("Tell me a story.", think=False, tokens=200, priority=priority)


async def test_background_requests_wait_and_others_do_not() -> None:
    async with loaded(load_spec()) as host:
        host.limit(WorkLimits(background=False))
        waiting = asyncio.create_task(run(host, of_class("background")))
        for priority in ("interactive", "batch"):
            assert (await run(host, of_class(priority)))[0] == lesson("story").content
        before = host.heartbeat.steps
        await asyncio.sleep(2.5)
        assert not waiting.done()
        # The supervisor sees progress, or it would take a runner that waits for a stalled one.
        assert host.heartbeat.steps > before and host.stalled_for < 2.4
        host.limit(UNLIMITED)
        assert (await waiting)[0] == lesson("story").content


async def test_a_share_makes_a_reply_slower_and_no_other() -> None:
    async with loaded(load_spec()) as host:
        await run(host, STORY)

        async def seconds(priority: str) -> float:
            begun = time.perf_counter()
            assert (await run(host, of_class(priority)))[0] == lesson("story").content
            return time.perf_counter() - begun

        free = min([await seconds("batch") for _ in range(3)])
        host.limit(WorkLimits(share=0.1))
        limited = await seconds("batch")
        interactive = min([await seconds("interactive") for _ in range(3)])
        assert limited > 3 * free
        assert interactive < limited


async def test_embeddings_obey_too(tmp_path: Path) -> None:
    folder = make_encoder(tmp_path, "bert")
    spec = LoadSpec(name="tiny", path=str(folder), fingerprint="", engine=EngineConfig(context_length=64), kind="embed")
    async with loaded(spec) as host:
        texts = ["hello there world"] * 3
        expected = (await host.embed(Embed(inputs=texts))).vectors
        host.limit(WorkLimits(background=False, share=0.25))
        waiting = asyncio.create_task(host.embed(Embed(inputs=texts, priority="background")))
        assert (await host.embed(Embed(inputs=texts, priority="interactive"))).vectors == expected
        assert (await host.embed(Embed(inputs=texts))).vectors == expected
        await asyncio.sleep(1.5)
        assert not waiting.done()
        host.limit(UNLIMITED)
        assert (await waiting).vectors == expected
