"""Models divided over two processes on this machine (MLX's ring): the same tokens as in one, and one end for all."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from omlx_cache import StoreConfig

from omlx.messages.failures import LoadError
from omlx.messages.load_spec import EngineConfig, LoadSpec
from omlx.messages.request import Finish, GenerateRequest, Limits, Sampling
from omlx.messages.work_limits import UNLIMITED, WorkLimits
from omlx.runner.connection import RequestFailed
from omlx.runner.host import RunnerHost
from omlx.runner.launch import GroupPlan, find_machines
from tests.support.processes import command_line
from tests.support.tiny import tiny_model

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

HERE = find_machines("", 2)
RING = GroupPlan(backend="ring", machines=HERE)
PROMPTS = [
    "A ring of machines, " * 12,
    "one after another ",
    "A ring of machines, " * 12 + "and a different end",
    "numbers: 1 2 3 4 5 6 7 8 9 " * 5,
]


def load_spec(architecture: str, cold: Path | None = None) -> LoadSpec:
    return LoadSpec(
        name=architecture,
        path=str(tiny_model(architecture)),
        fingerprint=architecture,
        engine=EngineConfig(context_length=1024),
        store=StoreConfig(
            fingerprint=architecture,
            hot_bytes=32_000_000,
            folder=str(cold) if cold else "",
            cold_bytes=100_000_000 if cold else 0,
        ),
    )


def request(prompt: str, tokens: int = 10, **sampling: Any) -> GenerateRequest:
    return GenerateRequest(
        id=0,
        raw_prompt=prompt,
        sampling=Sampling(**{"temperature": 0.0, **sampling}),
        limits=Limits(num_predict=tokens),
        return_context=True,
    )


async def run(host: RunnerHost, wanted: GenerateRequest) -> Finish:
    """The last event; its `context` holds the tokens."""
    async for event in host.generate(wanted):
        if isinstance(event, Finish):
            return event
    raise AssertionError("no Finish")


async def together(host: RunnerHost) -> list[list[int]]:
    """The tokens of several requests at once: greedy ones and one with a seed."""
    wanted = [request(prompt, 8 + at) for at, prompt in enumerate(PROMPTS)]
    wanted.append(request(PROMPTS[1], temperature=1.0, seed=7))
    return [finish.context for finish in await asyncio.gather(*(run(host, one) for one in wanted))]


async def alone(architecture: str) -> list[list[int]]:
    """What one process says."""
    host = await RunnerHost.spawn()
    try:
        await host.load(load_spec(architecture), stall_timeout=120)
        return await together(host)
    finally:
        await host.close()


def children(host: RunnerHost) -> list[psutil.Process]:
    """The ranks, which the launcher has started."""
    return psutil.Process(host.pid).children(recursive=True)


async def all_gone(processes: list[psutil.Process]) -> None:
    for _ in range(1200):
        if not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes):
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"left behind: {processes}")


@pytest.fixture(scope="module")
async def qwen3() -> AsyncIterator[RunnerHost]:
    host = await RunnerHost.spawn_group(RING)
    await host.load(load_spec("qwen3"), stall_timeout=120)
    yield host
    await host.close()


async def test_two_ranks_say_what_one_process_says(qwen3: RunnerHost) -> None:
    assert qwen3.ready is not None
    assert "tensor parallel over 2 ranks" in qwen3.ready.weights
    assert await together(qwen3) == await alone("qwen3")


async def test_a_cancel_reaches_all_ranks_and_harms_nobody(qwen3: RunnerHost) -> None:
    expected = (await run(qwen3, request(PROMPTS[3], 6))).context
    stream = qwen3.generate(request(PROMPTS[1], 200))
    other = asyncio.create_task(run(qwen3, request(PROMPTS[3], 6)))
    await anext(stream)
    await stream.aclose()
    assert (await other).context == expected
    assert (await run(qwen3, request(PROMPTS[3], 6))).context == expected


async def test_all_ranks_hold_the_same_requests_back(qwen3: RunnerHost) -> None:
    expected = [(await run(qwen3, request(prompt, 40))).context for prompt in PROMPTS[:2]]
    qwen3.limit(WorkLimits(share=0.2, places=1))
    held = [
        asyncio.create_task(run(qwen3, msgspec.structs.replace(request(prompt, 40), priority="batch")))
        for prompt in PROMPTS[:2]
    ]
    others = [(await run(qwen3, request(PROMPTS[1], 40))).context for _ in range(2)]
    assert others == [expected[1]] * 2
    qwen3.limit(UNLIMITED)
    assert [finish.context for finish in await asyncio.gather(*held)] == expected


async def test_one_request_that_cannot_run_leaves_the_group_as_it_was(qwen3: RunnerHost) -> None:
    with pytest.raises(RequestFailed, match="format"):
        await run(qwen3, msgspec.structs.replace(request(PROMPTS[1]), format={"type": "nonsense"}))
    assert (await run(qwen3, request(PROMPTS[1], 3))).completion_tokens == 3


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "way"), [("llama", "tensor"), ("qwen2", "pipeline")])
async def test_other_models_and_ways(architecture: str, way: Any) -> None:
    host = await RunnerHost.spawn_group(GroupPlan(backend="ring", parallel=way, machines=HERE))
    try:
        ready = await host.load(load_spec(architecture), stall_timeout=120)
        assert f"{way} parallel over 2 ranks" in ready.weights
        assert await together(host) == await alone(architecture)
    finally:
        await host.close()


@pytest.mark.slow
async def test_the_store_of_every_rank_survives_and_a_lost_part_is_computed_again(tmp_path: Path) -> None:
    texts: list[list[int]] = []
    cached: list[int] = []
    for _ in range(2):
        host = await RunnerHost.spawn_group(RING)
        await host.load(load_spec("llama", tmp_path), stall_timeout=120)
        finish = await run(host, request(PROMPTS[0]))
        texts.append(finish.context)
        cached.append(finish.cached_tokens)
        processes = children(host)
        await host.close()
        assert host.exit_text == "it ended with exit code 0"
        await all_gone(processes)
    assert texts[0] == texts[1]
    assert cached[0] == 0
    assert cached[1] > 100


async def test_a_rank_that_dies_ends_the_group_with_an_error() -> None:
    host = await RunnerHost.spawn_group(RING)
    await host.load(load_spec("qwen3"), stall_timeout=120)
    ranks = [process for process in children(host) if "omlx.runner.rank" in command_line(process)]
    ranks = [process for process in ranks if process.environ().get("MLX_RANK") == "1"]
    assert len(ranks) == 1
    everybody = children(host)
    stream = host.generate(request(PROMPTS[1], 900))
    await anext(stream)
    os.kill(ranks[0].pid, signal.SIGKILL)
    with pytest.raises(RequestFailed) as caught:
        async for _ in stream:
            pass
    assert caught.value.kind == "crashed"
    await asyncio.wait_for(host.gone.wait(), 120)
    await all_gone(everybody)


async def test_a_backend_that_is_not_there_is_an_error_not_a_group_of_one() -> None:
    with pytest.raises(LoadError):
        started = await RunnerHost.spawn_group(GroupPlan(backend="nccl", machines=HERE))
        try:
            await started.load(load_spec("qwen3"), stall_timeout=60)
        finally:
            await started.close(grace=1.0)


async def test_a_hostfile_stays_as_it_was_read(tmp_path: Path) -> None:
    """It is read when the server starts: memory is planned by it, so a later change must not change the group."""
    file = tmp_path / "hosts.json"
    file.write_text('{"backend": "ring", "hosts": [{"ssh": "127.0.0.1", "ips": ["127.0.0.1"]}, '
                    '{"ssh": "127.0.0.1", "ips": ["127.0.0.1"]}]}')  # fmt: skip
    machines = find_machines(str(file), 5)
    assert (machines.here, len(machines.hosts)) == (2, 2)
    file.unlink()
    host = await RunnerHost.spawn_group(GroupPlan(backend="ring", machines=machines))
    try:
        ready = await host.load(load_spec("qwen3"), stall_timeout=120)
        assert "over 2 ranks" in ready.weights
    finally:
        await host.close()


@pytest.mark.slow
async def test_a_model_that_cannot_be_divided_says_so() -> None:
    host = await RunnerHost.spawn_group(RING)
    try:
        with pytest.raises(LoadError, match="cannot be divided"):
            await host.load(load_spec("mamba2"), stall_timeout=120)
    finally:
        await host.close()
