"""A runner that dies or hangs costs its own requests at most, and those that had streamed nothing not even that."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from pathlib import Path

import pytest

from omlx.messages.request import Delta, Finish
from omlx.pool import PoolError, RequestFailed
from omlx.runner.connection import CRASHED
from tests.pool.support import answer, ask, exists, faulty, names, question, running_pool, spec, touch, until

pytestmark = pytest.mark.anyio
HELLO = "Hello "
"""The faulty runner echoes."""


async def test_a_request_that_streamed_nothing_is_replayed_on_a_new_runner(tmp_path: Path) -> None:
    flag = tmp_path / "once"
    flag.touch()
    async with running_pool(tmp_path, command=faulty(f"dies-at-request@{flag}")) as pool:
        assert await asyncio.gather(*(ask(pool, spec()) for _ in range(5))) == [HELLO] * 5
        assert len(pool.loaded()) == 1


async def test_it_is_replayed_once_only(tmp_path: Path) -> None:
    async with running_pool(tmp_path, command=faulty("dies-at-request")) as pool:
        async with await pool.acquire(spec()) as lease:
            with pytest.raises(RequestFailed) as failure:
                await answer(lease, question())
        assert (failure.value.kind, failure.value.message) == ("crashed", CRASHED)
        await until(lambda: pool.loaded() == [])


async def test_a_request_that_streamed_something_ends_with_the_error(tmp_path: Path) -> None:
    async with running_pool(tmp_path, command=faulty("dies-in-stream")) as pool:
        seen = ""
        async with await pool.acquire(spec()) as lease:
            with pytest.raises(RequestFailed) as failure:
                async for event in lease.generate(question("one two three four")):
                    seen += event.content if isinstance(event, Delta) else ""
        assert (seen, failure.value.kind) == ("one two ", "crashed")
        await until(lambda: pool.loaded() == [])


async def test_an_answer_that_is_given_whole_is_replayed_from_its_middle_too(tmp_path: Path) -> None:
    flag = tmp_path / "once"
    flag.touch()
    async with running_pool(tmp_path, command=faulty(f"dies-in-stream@{flag}")) as pool:
        async with await pool.acquire(spec()) as lease:
            events = [event async for event in lease.generate(question("one two three four"), whole=True)]
        said = "".join(event.content for event in events if isinstance(event, Delta))
        assert (said, isinstance(events[-1], Finish)) == ("one two three four ", True)


async def test_a_runner_without_progress_is_ended_and_its_requests_replayed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flag = tmp_path / "once"
    flag.touch()
    with caplog.at_level(logging.ERROR):
        async with running_pool(tmp_path, command=faulty(f"stalls@{flag}"), stall_timeout=2.0) as pool:
            begun = time.monotonic()
            assert await asyncio.gather(*(ask(pool, spec()) for _ in range(3))) == [HELLO] * 3
            assert time.monotonic() - begun > 2.0
    assert "nothing had moved for" in caplog.text


async def test_a_stopped_runner_is_noticed_by_its_standstill_and_its_requests_are_replayed(tmp_path: Path) -> None:
    async with running_pool(tmp_path, stall_timeout=5.0) as pool:
        async with await pool.acquire(spec()) as lease:
            (model,) = pool.loaded()
            os.kill(model.pid, signal.SIGSTOP)
            text, _ = await answer(lease, question())
        assert text == "Hello! How can I help you today?"
        assert pool.loaded()[0].pid != model.pid
        assert not exists(model.pid)


async def test_a_model_that_keeps_crashing_is_held_back(tmp_path: Path) -> None:
    async with running_pool(tmp_path, command=faulty("dies-at-request")) as pool:
        with pytest.raises(RequestFailed):
            await ask(pool, spec())
        held_back = asyncio.create_task(touch(pool, spec()))
        await asyncio.wait({held_back}, timeout=0.5)
        assert not held_back.done()
        assert names(pool) == set()
        held_back.cancel()
        await asyncio.gather(held_back, return_exceptions=True)


@pytest.mark.parametrize(
    ("fault", "kind", "text"),
    [
        ("refuses", "load_failed", "config.json is missing"),
        ("dies-loading", "load_failed", "it was killed (SIGKILL)"),
        ("dies-at-start", "load_failed", "did not start"),
        ("hangs-loading", "load_failed", "timed out waiting for the model to load"),
    ],
)
async def test_a_load_that_fails_is_an_error_for_all_who_waited_and_is_tried_again(
    tmp_path: Path, fault: str, kind: str, text: str
) -> None:
    flag = tmp_path / "once"
    flag.touch()
    patience = 2.0 if fault == "hangs-loading" else 60.0
    async with running_pool(tmp_path, command=faulty(f"{fault}@{flag}"), load_timeout=patience) as pool:
        results = await asyncio.gather(*(ask(pool, spec()) for _ in range(3)), return_exceptions=True)
        for result in results:
            assert isinstance(result, PoolError)
            assert result.kind == kind
            assert text in result.message
        assert pool.loaded() == []
        assert await ask(pool, spec()) == HELLO


async def test_a_load_nobody_waits_for_any_more_is_given_up(tmp_path: Path) -> None:
    async with running_pool(tmp_path, command=faulty("hangs-loading")) as pool:
        waiters = [asyncio.create_task(touch(pool, spec())) for _ in range(3)]
        await until(lambda: any(model.pid for model in pool.loaded()))
        (model,) = pool.loaded()
        waiters[0].cancel()
        await asyncio.sleep(0.05)
        assert pool.loaded()[0].state == "loading"
        for waiter in waiters:
            waiter.cancel()
        await until(lambda: pool.loaded() == [])
        await until(lambda: not exists(model.pid))


async def test_closing_the_pool_tells_those_who_wait_for_a_load(tmp_path: Path) -> None:
    async with running_pool(tmp_path, command=faulty("hangs-loading")) as pool:
        waiting = asyncio.create_task(touch(pool, spec()))
        await until(lambda: any(model.pid for model in pool.loaded()))
    (result,) = await asyncio.gather(waiting, return_exceptions=True)
    assert isinstance(result, PoolError)
    assert "shutting down" in result.message


async def test_a_runner_that_ignores_its_end_does_not_hold_up_the_next_load(tmp_path: Path) -> None:
    flag = tmp_path / "once"
    flag.touch()
    async with running_pool(
        tmp_path, command=faulty(f"ignores-shutdown@{flag}"), grace=0.5, max_loaded_models=1
    ) as pool:
        await touch(pool, spec("a"))
        await asyncio.wait_for(touch(pool, spec("b")), 120)
        assert names(pool) == {"b"}
