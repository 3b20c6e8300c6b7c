"""SIGTERM, with a real server and real runners: whoever waits is told so at once, wherever the request is."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from omlx_registry import Registry

from tests.server.local import eventually
from tests.support.processes import command_line
from tests.support.server import ServerProcess
from tests.support.tiny import tiny_model

TURN = [{"role": "user", "content": "Hello"}]
WAITING: Mapping[str, Mapping[str, Any]] = {
    "/api/generate": {"prompt": "Tell me a story.", "stream": False},
    "/api/chat": {"messages": TURN},
    "/v1/chat/completions": {"messages": TURN, "stream": True},
    "/v1/messages": {"messages": TURN, "max_tokens": 9},
    "/v1/responses": {"input": "Hello"},
    "/api/embed": {"input": "Hello"},
}
"""Whole and streamed, of each protocol."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """One model fits: who asks for another waits for its place."""
    registry = Registry(tmp_path / "models", [])
    for name in ("tiny", "other"):
        registry.add_model_folder(name, tiny_model("qwen3", taught=True), transfer="copy")
    env = {"OMLX_SHUTDOWN_GRACE": "1s", "OMLX_MAX_LOADED_MODELS": "1", "OMLX_SPARE_RUNNER": "false"}
    running = ServerProcess(tmp_path, env=env).start()
    yield running
    running.stop()


def runners(server: ServerProcess) -> list[psutil.Process]:
    assert server.process is not None
    children = psutil.Process(server.process.pid).children(recursive=True)
    return [
        child for child in children if "omlx.runner" in command_line(child) and "rendering" not in command_line(child)
    ]


def ask_all(server: ServerProcess, threads: ThreadPoolExecutor, model: str) -> list[Future[httpx.Response]]:
    def ask(path: str, body: Mapping[str, Any]) -> httpx.Response:
        return httpx.post(server.url + path, json={"model": model, **body}, timeout=120, trust_env=False)

    return [threads.submit(ask, path, body) for path, body in WAITING.items()]


def open_requests(server: ServerProcess) -> int:
    rows = httpx.get(f"{server.url}/api/omlx/requests", trust_env=False).json()["requests"]
    return sum(row["stage"] != "done" for row in rows)


@pytest.mark.parametrize("phase", ["loading", "running"])
def test_sigterm_gives_503_to_all_who_wait(server: ServerProcess, phase: str) -> None:
    """For a model that loads, for its place, or for an answer of which nothing has come yet."""
    with ThreadPoolExecutor(2 * len(WAITING)) as threads:
        if phase == "running":
            body = {"model": "tiny", "prompt": "Hello", "stream": False}
            assert httpx.post(f"{server.url}/api/generate", json=body, timeout=120, trust_env=False).is_success
            runners(server)[0].suspend()
        waiting = ask_all(server, threads, "tiny")
        if phase == "loading":
            assert eventually(lambda: len(runners(server)) == 1)
            runners(server)[0].suspend()
        waiting += ask_all(server, threads, "other")
        # This reading of the requests is one of them.
        assert eventually(lambda: open_requests(server) >= len(waiting))
        assert not any(answer.done() for answer in waiting)
        assert server.process is not None
        server.process.send_signal(signal.SIGTERM)
        for answer in waiting:
            assert answer.result().status_code == 503, answer.result().text
            assert "the server is shutting down" in answer.result().text
            assert answer.result().headers["retry-after"] == "1"
    assert server.process.wait(60) == 0
    assert "Traceback" not in server.log_text()
