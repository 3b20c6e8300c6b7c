"""A load stays within its memory cap, whatever the model's files make the runner do.

Real runners load folders that take all memory. `trust_remote_code` is on, so that the checks of files before the load
do not refuse them: here only the limit of the load itself is looked at.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import resource
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from omlx.pool import PoolError
from omlx.pool.pressure import resident
from tests.pool.support import HELLO, ask, names, running_pool, spec, touch
from tests.support.processes import has_begun
from tests.support.tiny import tiny_model

pytestmark = pytest.mark.anyio
ALLOWED = 350_000_000
"""Bytes for the runner; an idle one takes a third of it."""


def edit(folder: Path, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads((folder / name).read_text())
    change(content)
    (folder / name).write_text(json.dumps(content))


def many_layers(folder: Path) -> None:
    edit(folder, "config.json", lambda config: config.update(num_hidden_layers=10**9))


def doubling_normalizers(folder: Path) -> None:
    double = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    token = {"id": 700, "content": "aaaa", "special": False, "normalized": True}
    token |= {"lstrip": False, "rstrip": False, "single_word": False}

    def change(tokenizer: dict[str, Any]) -> None:
        tokenizer["normalizer"] = {"type": "Sequence", "normalizers": [double] * 40}
        tokenizer["added_tokens"].append(token)

    edit(folder, "tokenizer.json", change)


def many_values(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text('{"x": [' + "[]," * 30_000_000 + "[]]}")


@contextmanager
def peak_of_children() -> Iterator[list[int]]:
    """The most resident memory that a process started meanwhile has ever had, in bytes.

    The second entry is the least that this process held meanwhile: it may give back what earlier tests took.
    """
    peak, done = [0, resident()], threading.Event()
    before = {child.pid for child in psutil.Process().children(recursive=True)}

    def look() -> None:
        known: set[int] = set()
        for number in itertools.count():
            if number % 20 == 0:  # it looks at every process of the machine
                known = {child.pid for child in psutil.Process().children(recursive=True)} - before
                peak[1] = min(peak[1], resident())
            peak[0] = max([peak[0], *map(_most, known)])
            if done.wait(0.01):
                return

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def _most(pid: int) -> int:
    if not has_begun(pid):
        return 0
    try:
        if sys.platform != "linux":
            return int(psutil.Process(pid).memory_info().rss)
        text = Path(f"/proc/{pid}/status").read_text()
    except (OSError, psutil.Error):
        return 0
    return next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("VmHWM")), 0)


@pytest.mark.timeout(300)
async def test_a_load_that_takes_all_memory_ends_at_its_cap_and_others_go_on(tmp_path: Path) -> None:
    settings = {"max_model_memory": str(ALLOWED), "hot_cache_max_size": "0"}
    async with running_pool(tmp_path, trust_remote_code=True, **settings) as pool:
        assert await ask(pool, spec("good")) == HELLO
        for bomb in (many_layers, doubling_normalizers, many_values):
            folder = Path(shutil.copytree(tiny_model("qwen3"), tmp_path / bomb.__name__))
            bomb(folder)
            with peak_of_children() as peak:
                load = asyncio.create_task(touch(pool, spec(bomb.__name__, path=str(folder))))
                while not load.done():
                    assert await ask(pool, spec("good")) == HELLO
                    await asyncio.sleep(0.05)
            with pytest.raises(PoolError, match="requires more system memory to load than it may take") as failure:
                await load
            assert failure.value.kind == "too_large", bomb
            assert str(tmp_path) not in failure.value.message
            assert 0.8 * ALLOWED < peak[0] <= 1.05 * ALLOWED, bomb
            assert names(pool) == {"good"}


@pytest.mark.slow
async def test_the_cap_of_all_processes_is_one_of_each_load(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_model("qwen3"), tmp_path / "bomb"))
    many_layers(folder)
    held = resident()  # what belongs to other tests' pools is not known to this one
    settings = {"max_process_memory": str(held + ALLOWED), "hot_cache_max_size": "0"}
    async with running_pool(tmp_path, trust_remote_code=True, **settings) as pool:
        with peak_of_children() as peak, pytest.raises(PoolError, match="requires more system memory to load"):
            await touch(pool, spec("bomb", path=str(folder)))
        assert 0 < peak[0] <= 1.05 * (ALLOWED + held - peak[1])


async def test_the_kernels_limit_ends_with_the_load(tmp_path: Path) -> None:
    async with running_pool(tmp_path) as pool:
        await touch(pool, spec())
        (model,) = pool.loaded()
        if sys.platform == "linux":  # no other system limits another process
            assert resource.prlimit(model.pid, resource.RLIMIT_DATA) == resource.getrlimit(resource.RLIMIT_DATA)
        assert await ask(pool, spec()) == HELLO


async def test_a_hostile_folder_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_model("qwen3"), tmp_path / "bomb"))
    many_layers(folder)
    async with running_pool(tmp_path) as pool:
        with peak_of_children() as peak, pytest.raises(PoolError, match="but they have 2 layers"):
            await touch(pool, spec("bomb", path=str(folder)))
        assert peak[0] < ALLOWED


@pytest.mark.parametrize("missing", ["model.safetensors", "tokenizer.json", "config.json"])
async def test_no_error_of_a_load_names_a_folder_of_the_server(missing: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_model("qwen3"), tmp_path / "damaged"))
    (folder / missing).unlink()
    async with running_pool(tmp_path) as pool:
        with pytest.raises(PoolError, match="cannot be loaded") as failure:
            await touch(pool, spec("damaged", path=str(folder)))
        assert "/" not in failure.value.message.partition("cannot be loaded")[2], failure.value.message
