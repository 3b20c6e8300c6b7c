"""The worker process: does a job with progress, says why it failed, and never outlives whoever asked."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from omlx_registry.errors import CreateError, RegistryError
from omlx_registry.worker_client import ImportGguf, Job, JobProgress, JobResult, Quantize, run_job

from tests.registry.tiny_gguf import make_pair
from tests.support.processes import command_line

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pair(tmp_path_factory.mktemp("gguf"), "llama")[1]


@pytest.fixture(scope="module")
def large_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Large enough (some 200 MB) that its conversion can be caught at work."""
    changes = {"hidden_size": 1024, "intermediate_size": 4096, "head_dim": 256, "num_hidden_layers": 3}
    return make_pair(tmp_path_factory.mktemp("large"), "llama", **changes)[1]


async def events(job: Job) -> list[JobProgress | JobResult]:
    return [event async for event in run_job(job)]


def workers() -> list[psutil.Process]:
    """Our worker children, and theirs."""
    children = psutil.Process().children(recursive=True)
    return [child for child in children if "omlx_registry.worker" in command_line(child).split()]


async def test_a_job_reports_progress_and_ends_with_its_result(gguf: Path, tmp_path: Path) -> None:
    seen = await events(ImportGguf(str(gguf), str(tmp_path / "out")))
    assert isinstance(seen[-1], JobResult)
    assert seen[-1].result["architecture"] == "llama"
    assert sorted(os.listdir(tmp_path / "out")) == seen[-1].result["files"]
    progress = [event for event in seen if isinstance(event, JobProgress)]
    assert [progress[0].status, progress[-1].status] == ["parsing GGUF", "converting model"]
    assert progress[-1].completed == progress[-1].total > 0
    assert workers() == []


async def test_quantizing_runs_as_a_job_too(gguf: Path, tmp_path: Path) -> None:
    await events(ImportGguf(str(gguf), str(tmp_path / "full"), weights="f16"))
    seen = await events(Quantize(str(tmp_path / "full"), str(tmp_path / "small"), "Q4_K_M"))
    assert isinstance(seen[-1], JobResult)
    assert seen[-1].result["quantization_level"] == "Q4_K_M"
    assert {event.status for event in seen if isinstance(event, JobProgress)} == {"quantizing F16 model to Q4_K_M"}


@pytest.mark.parametrize(
    ("content", "weights", "status", "sentence"),
    [
        (b"no model at all, but long enough to be one", "keep", 400, "is not a GGUF file"),
        (None, "q9_9", 500, "unsupported quantization type Q9_9 - supported types are F32, F16, BF16"),
    ],
)
async def test_a_failed_job_is_one_sentence_with_its_status(
    content: bytes | None, weights: str, status: int, sentence: str, gguf: Path, tmp_path: Path
) -> None:
    path = gguf
    if content is not None:
        path = tmp_path / "bad.gguf"
        path.write_bytes(content)
    with pytest.raises(CreateError, match=sentence) as caught:
        await events(ImportGguf(str(path), str(tmp_path / "out"), weights))
    assert caught.value.status == status
    assert workers() == []


async def test_closing_the_iterator_kills_the_worker(large_gguf: Path, tmp_path: Path) -> None:
    job = run_job(ImportGguf(str(large_gguf), str(tmp_path / "out"), weights="q5_1"))
    async for event in job:
        if isinstance(event, JobProgress) and event.total:
            break
    assert len(workers()) == 1
    await job.aclose()  # type: ignore[attr-defined]
    assert workers() == []


async def test_cancelling_the_reader_kills_the_worker(large_gguf: Path, tmp_path: Path) -> None:
    task = asyncio.create_task(events(ImportGguf(str(large_gguf), str(tmp_path / "out"), weights="q5_1")))
    while not workers():
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert workers() == []


async def test_a_worker_that_dies_is_an_error_that_says_so(large_gguf: Path, tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match="the conversion was killed, probably because memory ran out"):
        async for _ in run_job(ImportGguf(str(large_gguf), str(tmp_path / "out"), weights="q5_1")):
            for process in workers():
                process.kill()


ORPHAN = """
import asyncio, sys
from omlx_registry.worker_client import ImportGguf, run_job

async def main():
    async for event in run_job(ImportGguf(sys.argv[1], sys.argv[2], "q5_1")):
        print(event, flush=True)

asyncio.run(main())
"""


async def test_a_worker_does_not_outlive_a_parent_that_was_killed(large_gguf: Path, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", ORPHAN, str(large_gguf), str(tmp_path / "out")]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        (worker,) = workers()
        parent.kill()
    deadline = time.monotonic() + 120
    while worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE


def talk(*lines: str) -> tuple[int, list[dict[str, Any]]]:
    """Run the worker by hand with these lines on its stdin, which then closes."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-m", "omlx_registry.worker"]
    done = subprocess.run(command, input="".join(lines), capture_output=True, text=True, env=environment, timeout=150)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def test_a_worker_nobody_talks_to_ends_silently() -> None:
    assert talk() == (1, [])


def test_a_job_that_is_none_is_refused() -> None:
    job = subprocess.Popen(
        [sys.executable, "-m", "omlx_registry.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert job.stdin is not None and job.stdout is not None
    job.stdin.write(b'{"job": "make_coffee"}\n')
    job.stdin.flush()
    line = json.loads(job.stdout.readline())
    job.stdin.close()
    assert job.wait(120) == 1
    assert "make_coffee" in line["error"]


def test_the_client_side_is_light() -> None:
    """The server imports it: no NumPy, no MLX, no gguf."""
    code = "import sys, omlx_registry.worker_client, omlx_registry.bundled, omlx_registry.quantize; print(*sys.modules)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert not {"numpy", "mlx", "gguf", "tokenizers", "transformers", "torch"} & set(done.stdout.split())


async def test_a_worker_that_takes_too_much_memory_is_ended_with_a_sentence(large_gguf: Path, tmp_path: Path) -> None:
    with pytest.raises(CreateError, match="the conversion takes more memory than is free"):
        async for _ in run_job(ImportGguf(str(large_gguf), str(tmp_path / "made")), memory=30 << 20):
            pass
    assert workers() == []
