"""A divided model behind the server: what a client sees when one of its processes dies or hangs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from omlx_registry import Registry

from tests.support.server import ServerProcess
from tests.support.tiny import tiny_model

pytestmark = pytest.mark.timeout(400)

LETTERS = {"type": "grammar", "syntax": "regex", "definition": "[a-z ]{50000}"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("divided")
    env = {"OMLX_DISTRIBUTED": "ring", "OMLX_STALL_TIMEOUT": "20s", "OMLX_SPARE_RUNNER": "false"}
    server = ServerProcess(folder, env=env)
    Registry(server.models, []).add_model_folder("tiny", tiny_model("qwen3"))
    with server:
        yield server


def ask(server: ServerProcess, **fields: Any) -> dict[str, Any]:
    options = {"num_predict": 8, "temperature": 0}
    body = {"model": "tiny", "prompt": "one after another", "raw": True, "stream": False, "options": options, **fields}
    answer = httpx.post(f"{server.url}/api/generate", json=body, timeout=180, trust_env=False)
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


def rank_1(server: ServerProcess) -> psutil.Process:
    assert server.process is not None
    children = psutil.Process(server.process.pid).children(recursive=True)
    return next(child for child in children if child.environ().get("MLX_RANK") == "1")


def broken_by(server: ServerProcess, number: signal.Signals) -> str:
    """The last line of a stream during which rank 1 gets a signal."""
    body = {"model": "tiny", "prompt": "x", "raw": True, "format": LETTERS, "options": {"num_predict": 30_000}}
    with httpx.stream("POST", f"{server.url}/api/generate", json=body, timeout=180, trust_env=False) as answer:
        lines = answer.iter_lines()
        next(lines)
        os.kill(rank_1(server).pid, number)
        return [line for line in lines if line][-1]


def test_a_rank_that_dies_ends_its_streams_with_an_error_and_the_next_request_starts_the_group_again(
    server: ServerProcess,
) -> None:
    before = ask(server)["response"]
    status = httpx.get(f"{server.url}/api/omlx/status", trust_env=False).json()
    assert "tensor parallel over 2 ranks" in status["models"][0]["weights"]
    assert "error" in broken_by(server, signal.SIGKILL)
    assert ask(server)["response"] == before


@pytest.mark.slow
def test_a_rank_that_hangs_is_found_by_the_watchdog(server: ServerProcess) -> None:
    before = ask(server)["response"]
    stopped = rank_1(server)
    assert "error" in broken_by(server, signal.SIGSTOP)
    assert ask(server)["response"] == before
    for _ in range(100):
        if not stopped.is_running() or stopped.status() == psutil.STATUS_ZOMBIE:
            return
        time.sleep(0.1)
    raise AssertionError("the rank that hung is left behind")


def test_a_modelfile_says_how_its_model_is_divided(server: ServerProcess, tmp_path: Path) -> None:
    body = {"model": "whole", "from": "tiny", "parameters": {"distributed": "off"}, "stream": False}
    httpx.post(f"{server.url}/api/create", json=body, timeout=60, trust_env=False).raise_for_status()
    ask(server, model="whole")
    models = httpx.get(f"{server.url}/api/omlx/status", trust_env=False).json()["models"]
    assert not any("ranks" in model["weights"] for model in models if model["name"].startswith("whole"))
