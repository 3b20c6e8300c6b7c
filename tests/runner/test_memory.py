"""Memory of requests in a real runner: what cannot fit is told so, what does not fit now waits, and shares change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from omlx.messages.frames import HotCacheShare
from omlx.messages.load_spec import EngineConfig
from omlx.runner.connection import RequestFailed
from omlx.runner.host import RunnerHost
from tests.runner.test_runner import load_spec, request, run, settled
from tests.support.tiny import ARCHITECTURES, make

pytestmark = pytest.mark.anyio
WIDE = {"num_hidden_layers": 6, "num_key_value_heads": 4, "head_dim": 256}
TOKEN_BYTES = 2 * 6 * 4 * 256 * 4
FIT = 64_000_000 // TOKEN_BYTES
"""Tokens that the least allowance of a model holds."""


@pytest.fixture(scope="module")
async def host(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunnerHost]:
    """A runner that may take hardly more than its model."""
    folder = Path(tmp_path_factory.mktemp("wide"))
    make(folder, "qwen3", ARCHITECTURES["qwen3"] | WIDE, taught=False)
    found = await RunnerHost.spawn()
    ready = await found.load(
        load_spec(path=str(folder), engine=EngineConfig(context_length=4096), memory_bytes=1), stall_timeout=60
    )
    assert ready.kv_bytes_per_token == TOKEN_BYTES
    assert ready.transient_bytes > 0
    yield found
    await found.close()


async def test_a_prompt_that_can_never_fit_is_told_the_context_that_would(host: RunnerHost) -> None:
    with pytest.raises(RequestFailed) as failure:
        await run(host, request("", raw_prompt="a b " * 1000, tokens=5))
    assert failure.value.kind == "too_long"
    assert f"exceeds the context length that fits in memory ({FIT} tokens)" in failure.value.message


async def test_what_does_not_fit_now_waits_until_it_does(host: RunnerHost) -> None:
    many = [request("", raw_prompt="a b " * 200, tokens=40) for _ in range(4)]
    reserved = 0

    async def watch() -> None:
        nonlocal reserved
        while True:
            reserved = max(reserved, (await host.stats()).get("reserved_bytes", 0))
            await asyncio.sleep(0.01)

    watching = asyncio.create_task(watch())
    answers = await asyncio.gather(*(run(host, one) for one in many))
    watching.cancel()
    assert len({content for content, _, _ in answers}) == 1
    assert 0 < reserved <= FIT * TOKEN_BYTES
    assert (await settled(host)).get("reserved_bytes", 0) == 0


async def test_a_larger_share_lets_larger_requests_in(host: RunnerHost) -> None:
    host.limit(HotCacheShare(hot_bytes=0, memory_bytes=2_000_000_000))
    _, _, finish = await run(host, request("", raw_prompt="a b " * 1000, tokens=5))
    assert finish.prompt_tokens > FIT
    host.limit(HotCacheShare(hot_bytes=0, memory_bytes=1))
    with pytest.raises(RequestFailed, match="fits in memory"):
        await run(host, request("", raw_prompt="a b " * 1000, tokens=5))
