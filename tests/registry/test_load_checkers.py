"""Load checks are cheap: a checker is kept for the next one, and what loaded once is not checked again."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from omlx_registry import CreateError, Registry
from omlx_registry.load_checkers import LoadCheckers

from tests.registry.test_acceptance import config, create, uploaded
from tests.support.processes import command_line
from tests.support.tiny import tiny_model

pytestmark = pytest.mark.anyio
COMMAND = "omlx_registry.load_check_worker"


def checkers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if COMMAND in command_line(child)]


@pytest.fixture(scope="module")
def own() -> LoadCheckers:
    """One for all tests here: each process that starts takes seconds."""
    for child in checkers():  # of earlier tests
        child.kill()
    return LoadCheckers(COMMAND)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model("qwen3"), tmp_path / "folder"))


async def test_one_process_checks_one_model_after_another(own: LoadCheckers, folder: Path) -> None:
    await own.check(folder)
    (first,) = checkers()
    config(num_hidden_layers=6)(folder)
    with pytest.raises(CreateError, match="does not load: Missing 44 parameters"):
        await own.check(folder)
    config(num_hidden_layers=2)(folder)
    await own.check(folder)
    assert [child.pid for child in checkers()] == [first.pid]


async def test_of_several_at_a_time_one_is_kept(own: LoadCheckers, folder: Path) -> None:
    await asyncio.gather(*(own.check(folder) for _ in range(2)))
    while len(checkers()) != 1:
        await asyncio.sleep(0.01)


async def test_a_checker_that_has_ended_is_replaced(own: LoadCheckers, folder: Path) -> None:
    await own.check(folder)
    (first,) = checkers()
    first.kill()
    await own.check(folder)
    assert [child.pid for child in checkers()] != [first.pid]


async def test_a_check_that_nobody_waits_for_ends_with_its_process(own: LoadCheckers, folder: Path) -> None:
    own.prepare()
    own.prepare()
    (first,) = checkers()
    first.send_signal(signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(own.check(folder), 0.2)
    while checkers():
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("close", [True, False], ids=["its server has ended", "idle"])
def test_a_checker_ends_by_itself(close: bool) -> None:
    code = f"import {COMMAND} as worker; worker.IDLE_S = {600 if close else 0.05}; worker.main(prepare=lambda: None)"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        if close:
            process.stdin.close()
        assert process.wait(60) == 0


async def test_what_loaded_once_is_not_checked_again(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "models"
    config(rope_theta=12345.0)(folder)  # as no other test has it
    registry = Registry(root, [])
    assert await create(registry, model="guest", files=uploaded(registry, folder)) == "success"
    again = Registry(root, [])
    for child in checkers():
        child.send_signal(signal.SIGSTOP)
    try:
        assert await asyncio.wait_for(create(again, model="same", files=uploaded(again, folder)), 30) == "success"
    finally:
        for child in checkers():
            child.send_signal(signal.SIGCONT)
