"""A runner that misbehaves costs its own requests at most; the server learns what happened in words."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from omlx.messages.failures import LoadError
from omlx.messages.load_spec import EngineConfig, LoadSpec
from omlx.messages.request import Delta, Finish, GenerateRequest, Message
from omlx.runner.connection import CRASHED, RequestFailed
from omlx.runner.host import RunnerHost
from tests.support.processes import Children

pytestmark = pytest.mark.anyio
FAULTY = str(Path(__file__).with_name("faulty_runner.py"))


def spec(name: str = "m:latest") -> LoadSpec:
    return LoadSpec(name=name, path="/nowhere", fingerprint="f", engine=EngineConfig(context_length=64))


def request(text: str) -> GenerateRequest:
    return GenerateRequest(id=0, messages=[Message("user", text)])


@asynccontextmanager
async def runner(fault: str) -> AsyncIterator[RunnerHost]:
    host = await RunnerHost.spawn([sys.executable, FAULTY, fault])
    try:
        yield host
    finally:
        host.kill()
        await host.close(grace=0)


@asynccontextmanager
async def loaded(fault: str) -> AsyncIterator[RunnerHost]:
    async with runner(fault) as host:
        await host.load(spec(), stall_timeout=120)
        yield host


async def text_of(host: RunnerHost, prompt: str) -> str:
    return "".join([event.content async for event in host.generate(request(prompt)) if isinstance(event, Delta)])


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("dies-at-start", "did not start: it ended with exit code 7"),
        (
            "dies-loading",
            "stopped while it loaded the model: it was killed (SIGKILL), most often because memory ran out",
        ),
        ("refuses", "config.json is missing"),
        ("garbage", "it sent something that is no frame"),
        ("endless-frame", "a frame of 4294967295 bytes is over the limit"),
        ("hangs-loading", "timed out waiting for the model to load: no progress for 300ms"),
    ],
)
async def test_a_load_that_fails_says_why(fault: str, message: str) -> None:
    async with runner(fault) as host:
        with pytest.raises(LoadError) as failure:
            stall = 0.3 if fault == "hangs-loading" else 60
            await asyncio.wait_for(host.load(spec(), stall_timeout=stall), 120)
    assert message in failure.value.message


async def test_a_slow_load_that_makes_progress_is_waited_for() -> None:
    async with runner("slow-load") as host:
        steps: list[int] = []
        await host.load(spec(), stall_timeout=1.8, progress=lambda frame: steps.append(frame.done))
    assert steps == [0, 1, 2, 3]


async def test_death_in_mid_stream_fails_every_open_request_with_ollamas_words() -> None:
    async with loaded("dies-in-stream") as host:
        seen: list[str] = []
        with pytest.raises(RequestFailed) as failure:
            async for event in host.generate(request("one two three four")):
                assert isinstance(event, Delta)
                seen.append(event.content)
        assert (failure.value.kind, failure.value.message) == ("crashed", CRASHED)
        assert "".join(seen) == "one two "
        assert not host.alive
        with pytest.raises(RequestFailed):
            await text_of(host, "another")
        assert not exists(host.pid)


async def test_no_progress_shows_although_the_process_lives_and_beats() -> None:
    async with loaded("stalls") as host:
        assert host.stalled_for == 0
        waiting = asyncio.create_task(text_of(host, "hello"))
        while host.stalled_for <= 0.2:
            await asyncio.sleep(0.01)
        assert host.alive
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert host.open_requests == 0


async def test_a_runner_that_ignores_everything_is_killed_in_bounded_time() -> None:
    async with loaded("ignores-shutdown") as host:
        async with asyncio.timeout(120):
            await host.close(grace=0.3)
        assert not exists(host.pid)


async def test_a_client_that_does_not_read_costs_bounded_memory_and_nobody_else() -> None:
    async with loaded("floods") as host:
        events = host.generate(request("word " * 20))
        first = await anext(events)
        assert isinstance(first, Delta)
        (mailbox,) = host._connection._mailboxes.values()
        while not mailbox.closed:
            await asyncio.sleep(0.05)
        assert len(mailbox._items) < 100
        total = len(first.content)
        async for event in events:
            total += len(event.content) if isinstance(event, Delta) else 0
        assert total == len("word " * 20 + " ") * 2_000


async def test_what_a_runner_prints_is_logged_with_the_models_name(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="omlx.runner"):
        async with loaded("none") as host:
            assert await text_of(host, "a b") == "a b "
            await host.close()
    assert ("omlx.runner", logging.WARNING, "m:latest: the weights look odd") in caplog.record_tuples
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_each_caller_gets_its_own_events() -> None:
    async with loaded("none") as host:
        texts = [f"client {number} says hello" for number in range(20)]
        assert await asyncio.gather(*(text_of(host, text) for text in texts)) == [text + " " for text in texts]
        finishes = [event async for event in host.generate(request("x")) if isinstance(event, Finish)]
        assert len(finishes) == 1


@pytest.mark.parametrize("steps", range(6))
def test_a_start_that_is_given_up_closes_no_descriptor_twice(steps: int) -> None:
    """Whatever takes the numbers of what was closed keeps them."""
    new_children = Children()

    async def given_up() -> None:
        starting = asyncio.create_task(RunnerHost.spawn([sys.executable, FAULTY, "hangs-loading"]))
        for _ in range(steps):
            await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait([starting])
        others = [os.open(os.devnull, os.O_RDONLY) for _ in range(20)]
        identities = [os.fstat(descriptor) for descriptor in others]
        if not starting.cancelled():
            starting.result().kill()
            await starting.result().close(grace=0)
        del starting
        for _ in range(200):
            await asyncio.sleep(0.01)
            gc.collect()
            if not new_children():
                break
        assert [os.fstat(descriptor) for descriptor in others] == identities
        for descriptor in others:
            os.close(descriptor)

    # The server's loop, not that of the other tests: who closes what differs.
    uvloop.run(given_up())
    assert not new_children()
