"""The pool from outside: a real `omlx serve`, real runners, and what a client sees when one of them dies or hangs."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from omlx_registry import Overrides, Registry, Texts

from tests.pool.support import HELLO, exists
from tests.server.local import eventually
from tests.support.lessons import STORY
from tests.support.server import ServerProcess
from tests.support.tiny import tiny_model

CRASHED = "model runner has unexpectedly stopped"
STREAMS = 8


def stock(folder: Path) -> None:
    """Two models; `brief` says in its Modelfile how long it stays."""
    registry = Registry(folder / "models", [])
    for name, own in (("tiny", {}), ("brief", {"keep_alive": "77s"})):
        texts = Texts(parameters={"temperature": 0, "num_ctx": 4096, **own})
        registry.add_model_folder(
            name, tiny_model("qwen3", taught=True), texts=texts, overrides=Overrides(), transfer="copy"
        )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("pool-server")
    stock(folder)
    env = {"OMLX_STALL_TIMEOUT": "10s", "OMLX_MODEL_KEEP_ALIVE": "nobody=1h", "OMLX_SHUTDOWN_GRACE": "30s"}
    with ServerProcess(folder, env=env) as running:
        yield running


class Stream(threading.Thread):
    """One streamed story. `begun` is set at its first line, `ended` holds its last one."""

    def __init__(self, server: ServerProcess, model: str = "tiny") -> None:
        super().__init__()
        self.url = server.url
        self.body = {"model": model, "prompt": "Tell me a story."}
        self.begun = threading.Event()
        self.text = ""
        self.ended: dict[str, Any] = {}
        self.start()

    def run(self) -> None:
        with httpx.stream("POST", f"{self.url}/api/generate", json=self.body, timeout=120, trust_env=False) as response:
            for line in response.iter_lines():
                self.ended = json.loads(line)
                self.text += self.ended.get("response", "")
                self.begun.set()


def call(server: ServerProcess, method: str, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
    return httpx.request(method, server.url + path, json=body, timeout=120, trust_env=False)


def hello(server: ServerProcess, model: str = "tiny") -> str:
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "stream": False}
    return str(call(server, "POST", "/api/chat", body).json()["message"]["content"])


def runner_of(server: ServerProcess, model: str = "tiny") -> int:
    models = call(server, "GET", "/api/omlx/status").json()["models"]
    return next(int(found["pid"]) for found in models if found["name"] == f"{model}:latest")


def check_all_ended(streams: list[Stream]) -> list[str]:
    """Every stream has its whole story, or ends with the error; returns the errors."""
    errors = []
    for stream in streams:
        stream.join(150)
        assert not stream.is_alive()
        if "error" in stream.ended:
            errors.append(stream.ended["error"])
        else:
            assert stream.ended["done"]
            assert stream.text == STORY
    return errors


def test_a_killed_runner_under_eight_streams_costs_those_only(server: ServerProcess) -> None:
    assert hello(server) == hello(server, "brief") == HELLO
    other = runner_of(server, "brief")
    streams = [Stream(server) for _ in range(STREAMS)]
    assert streams[0].begun.wait(120)
    pid = runner_of(server)
    os.kill(pid, signal.SIGKILL)
    assert all(CRASHED in error for error in check_all_ended(streams))
    assert hello(server) == HELLO
    assert not exists(pid)
    assert runner_of(server, "brief") == other
    log = server.log_text()
    assert "it was killed (SIGKILL), most often because memory ran out: use a smaller model" in log


def test_a_stopped_runner_shows_in_ready_and_its_requests_end(server: ServerProcess) -> None:
    assert hello(server) == HELLO
    assert call(server, "GET", "/ready").status_code == 200
    pid = runner_of(server)
    os.kill(pid, signal.SIGSTOP)
    streams = [Stream(server) for _ in range(STREAMS)]
    assert eventually(lambda: call(server, "GET", "/ready").status_code == 503)
    found = call(server, "GET", "/ready").json()
    assert (found["status"], {"name": "tiny:latest", "state": "stalled"} in found["models"]) in {
        ("stalled", True), ("ready", False),  # on a busy machine the runner may have been ended by now
    }  # fmt: skip
    assert call(server, "GET", "/health").status_code == 200
    assert hello(server, "brief") == HELLO  # other models go on
    assert check_all_ended(streams) == []  # nothing had been streamed, so all are replayed
    assert not exists(pid)
    assert call(server, "GET", "/ready").status_code == 200
    assert "8 requests were open and nothing had moved for" in server.log_text()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process that runs")
def test_a_runner_out_of_memory_under_eight_streams_is_survived(server: ServerProcess) -> None:
    assert hello(server) == HELLO
    process = psutil.Process(runner_of(server))
    streams = [Stream(server) for _ in range(STREAMS)]
    assert streams[0].begun.wait(120)
    limit = process.memory_info().vms
    process.rlimit(psutil.RLIMIT_AS, (limit, limit))  # from now on it is refused any further memory
    long = {"model": "tiny", "prompt": "word " * 3000, "stream": False, "options": {"num_predict": 5}}
    answer = call(server, "POST", "/api/generate", long)
    assert answer.status_code in {200, 500}
    assert all(
        CRASHED in error or "running the model" in error or "failed" in error for error in check_all_ended(streams)
    )
    call(server, "POST", "/api/generate", {"model": "tiny", "keep_alive": 0})
    assert eventually(lambda: not process.is_running())
    assert hello(server) == HELLO
    assert "Traceback" not in answer.text


def test_keep_alive_pins_and_what_each_model_does(server: ServerProcess) -> None:
    assert hello(server, "brief") == hello(server) == HELLO
    status = call(server, "GET", "/api/omlx/status").json()
    models = {model["name"]: model for model in status["models"]}
    assert models["tiny:latest"]["mean_batch"] >= 1
    assert models["tiny:latest"]["lookups"] >= 1
    assert status["memory"]["used"] <= status["memory"]["cap"]
    assert status["pid"] == server.process.pid if server.process else False
    pinned = call(server, "POST", "/api/omlx/pin", {"model": "brief"}).json()
    assert pinned["warning"].startswith("1 of 2 models are pinned")
    assert call(server, "GET", "/api/omlx/status").json()["pin_warning"] == pinned["warning"]
    call(server, "POST", "/api/omlx/pin", {"model": "brief", "pinned": False})
    assert call(server, "GET", "/api/omlx/status").json()["pin_warning"] == ""


def test_sigterm_lets_running_requests_end_and_takes_no_new_ones(server: ServerProcess) -> None:
    assert hello(server) == hello(server, "brief") == HELLO
    runners = [runner_of(server), runner_of(server, "brief")]
    assert server.process is not None
    with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as kept:
        kept.get("/api/version")
        streams = [Stream(server) for _ in range(STREAMS)]
        assert all(stream.begun.wait(120) for stream in streams)
        server.process.send_signal(signal.SIGTERM)
        assert check_all_ended(streams) == []
    assert server.process.wait(120) == 0
    assert not any(exists(pid) for pid in runners)


def test_a_killed_server_leaves_no_runner(tmp_path: Path) -> None:
    stock(tmp_path)
    with ServerProcess(tmp_path) as server:
        assert hello(server) == HELLO
        assert server.process is not None
        children = psutil.Process(server.process.pid).children(recursive=True)
        assert runner_of(server) in [child.pid for child in children]
        server.kill()
        assert eventually(lambda: not any(child.is_running() for child in children), 30)
