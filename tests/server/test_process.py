"""`serve` as a process: fast start, no MLX, an honest log, and an orderly end."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from omlx import __version__
from tests.server.local import SCRIPTED, eventually, stocked
from tests.support.server import free_port

ROOT = Path(__file__).parents[2]
HEAVY = ["mlx", "mlx_lm", "mlx_vlm", "transformers", "torch", "numpy", "PIL", "huggingface_hub", "tokenizers"]

# What `omlx serve` does, with a runner program of the test's choosing.
PROGRAM = """
import functools, os, sys
from omlx.server import serve
from omlx.settings import load
if sys.argv[1:]:
    from omlx.server import process
    process.Pool = functools.partial(process.Pool, command=sys.argv[1:])
sys.exit(serve(load({}, os.environ)))
"""


class Process:
    def __init__(self, folder: Path, port: int, *runner: str, **variables: str) -> None:
        self.url = f"http://127.0.0.1:{port}"
        env = {**os.environ, "OMLX_HOST": f"127.0.0.1:{port}", "OMLX_MODELS": str(folder), "OMLX_SPARE_RUNNER": "false",
               "OMLX_CONFIG": "/dev/null",
               "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("", "registry", "cache")),
               **variables}  # fmt: skip
        self.begun = time.monotonic()
        command = [sys.executable, "-c", PROGRAM, *runner]
        self.process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True, cwd=ROOT)

    def wait_until_up(self) -> None:
        while time.monotonic() - self.begun < 120:
            try:
                httpx.get(f"{self.url}/api/version", trust_env=False)
            except httpx.TransportError:
                assert self.process.poll() is None, self.process.communicate()[1]
                time.sleep(0.01)
            else:
                return
        raise AssertionError("the server did not come up")

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Exit code and log after a signal."""
        self.process.send_signal(number)
        _, log = self.process.communicate(timeout=150)
        return self.process.returncode, log


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[Process]]:
    processes: list[Process] = []
    yield processes
    for one in processes:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


def test_it_answers_after_less_than_a_second_of_work_and_ends_with_zero(tmp_path: Path, started: list[Process]) -> None:
    # Not by the clock, and the best of several: what else the machine does is not the server's fault.
    best = math.inf
    for _ in range(5):
        started.append(Process(tmp_path, free_port()))
        started[-1].wait_until_up()
        used = psutil.Process(started[-1].process.pid).cpu_times()
        best = min(best, used.user + used.system)
        code, log = started[-1].end()
        assert code == 0
        if best < 1.0:
            break
    assert best < 1.0
    address = started[-1].url.removeprefix("http://")
    assert f"Listening on {address} (version 0.33.0, omlx {__version__})" in log
    assert "GET /api/version 200" in log
    assert "Stopped" in log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_promptly_with_streams_open(tmp_path: Path, started: list[Process], number: int) -> None:
    stocked(tmp_path)
    server = Process(tmp_path, free_port(), *SCRIPTED, OMLX_SHUTDOWN_GRACE="1s")
    started.append(server)
    server.wait_until_up()
    body = {"model": "plain", "prompt": "begin"}  # it never ends
    with (
        httpx.stream("POST", f"{server.url}/api/generate", json=body, trust_env=False, timeout=120) as response,
        httpx.stream("GET", f"{server.url}/api/omlx/events", trust_env=False, timeout=120) as watched,
    ):
        lines = response.iter_lines()
        assert json.loads(next(lines))["response"] == "begun"
        (model,) = httpx.get(f"{server.url}/ready", trust_env=False).json()["models"]
        assert model == {"name": "plain:latest", "state": "ready"}
        server.process.send_signal(number)
        assert json.loads(next(lines)) == {"error": "the server is shutting down"}
        # A dashboard that watches is told nothing more, and holds nothing up.
        assert "event: overview" in [*watched.iter_lines()]
    _, log = server.process.communicate(timeout=150)
    assert server.process.returncode == 0
    assert "Traceback" not in log
    assert "ERROR" not in log


@pytest.mark.parametrize("signals", [1, 2])
def test_a_signal_gives_waiting_requests_503(tmp_path: Path, started: list[Process], signals: int) -> None:
    """Whether they wait for a model, for a reply or for the rest of their own body; a second signal changes nothing."""
    stocked(tmp_path)
    port = free_port()
    server = Process(tmp_path, port, *SCRIPTED, OMLX_SHUTDOWN_GRACE="1s")
    started.append(server)
    server.wait_until_up()
    whole = json.dumps({"model": "plain", "prompt": "hang", "stream": False}).encode()
    sent = {
        "a reply": ("/api/generate", whole, len(whole)),
        "the rest of a body": ("/v1/messages", b"{", 100),
        "the rest of a blob": (f"/api/blobs/sha256:{'a' * 64}", b"{", 100),
    }
    waiting = {}
    for name, (path, body, length) in sent.items():
        waiting[name] = socket.create_connection(("127.0.0.1", port), timeout=120)
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n"
        waiting[name].sendall(head.encode() + body)

    def open_ones() -> int:
        rows = httpx.get(f"{server.url}/api/omlx/requests", trust_env=False).json()["requests"]
        return sum(row["stage"] != "done" for row in rows)

    assert eventually(lambda: open_ones() > 0)
    for _ in range(signals):
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
    for name, connection in waiting.items():
        reply = b"".join(iter(lambda connection=connection: connection.recv(65536), b""))  # type: ignore[misc]
        assert reply.startswith(b"HTTP/1.1 503 ") and b"the server is shutting down" in reply, name
        assert b"retry-after: 1\r\n" in reply
    _, log = server.process.communicate(timeout=150)
    assert server.process.returncode == 0
    assert "Traceback" not in log and "ERROR" not in log


def test_a_signal_at_once_leaves_no_traceback(tmp_path: Path, started: list[Process]) -> None:
    stocked(tmp_path)
    for delay in (0.0, 0.05, 0.2):
        server = Process(tmp_path, free_port(), *SCRIPTED)
        started.append(server)
        server.wait_until_up()
        time.sleep(delay)
        server.process.send_signal(signal.SIGTERM)
        server.process.send_signal(signal.SIGTERM)
        _, log = server.process.communicate(timeout=150)
        assert server.process.returncode == 0
        assert "Traceback" not in log and "uvicorn" not in log


def test_a_taken_port_is_told_in_a_sentence(tmp_path: Path, started: list[Process]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = Process(tmp_path, port)
        started.append(server)
        _, log = server.process.communicate(timeout=150)
    assert server.process.returncode == 1
    assert log == f"Error: listen tcp 127.0.0.1:{port}: bind: address already in use\n"


def test_a_models_folder_that_cannot_be_used_stops_the_start(tmp_path: Path, started: list[Process]) -> None:
    (tmp_path / "file").touch()
    server = Process(tmp_path, free_port(), OMLX_MODELS=str(tmp_path / "file" / "models"))
    started.append(server)
    _, log = server.process.communicate(timeout=150)
    assert server.process.returncode == 1
    assert log.startswith(f"Error: the models folder {tmp_path}/file/models cannot be used: not a directory; make it")
    assert log.count("\n") == 1


def test_an_origin_that_means_nothing_stops_the_start(tmp_path: Path, started: list[Process]) -> None:
    server = Process(tmp_path, free_port(), OLLAMA_ORIGINS="chat.example")
    started.append(server)
    _, log = server.process.communicate(timeout=150)
    assert server.process.returncode == 1
    assert log.startswith('Error: the origin "chat.example" must start with')
    assert "Traceback" not in log


@pytest.mark.parametrize(("no_prune", "stays"), [("true", True), ("false", False)])
def test_the_store_is_tidied_after_the_start_unless_told_otherwise(
    tmp_path: Path, started: list[Process], no_prune: str, stays: bool
) -> None:
    litter = stocked(tmp_path).store.blobs.temporary()
    litter.touch()
    server = Process(tmp_path, free_port(), OLLAMA_NOPRUNE=no_prune)
    started.append(server)
    server.wait_until_up()
    if not stays:
        assert eventually(lambda: not litter.exists())
    server.end()
    assert litter.exists() == stays


def test_preloaded_models_are_there_and_a_wrong_one_is_named(tmp_path: Path, started: list[Process]) -> None:
    stocked(tmp_path)
    server = Process(tmp_path, free_port(), *SCRIPTED, OMLX_PRELOAD="nope,plain")
    started.append(server)
    server.wait_until_up()

    def loaded() -> list[str]:
        models = httpx.get(f"{server.url}/api/ps", trust_env=False).json()["models"]
        return [model["name"] for model in models]

    assert eventually(lambda: loaded() == ["plain:latest"])
    _, log = server.end()
    assert "nope could not be preloaded: model 'nope' not found" in log


def test_the_server_process_stays_light() -> None:
    program = (
        f"import sys, omlx.server.process, omlx.server.app; print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("", "registry", "cache"))}
    found = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "cannot be read: No such file or directory"),
        ('{"hosts": 5}', "is none that can be used: Expected `array`, got `int`"),
        ('[{"ssh": "alone", "ips": ["10.0.0.1"]}]', "names fewer than two hosts"),
        ('[{"ssh": "a"}, {"ssh": "b"}]', "gives the first host no IP address"),
    ],
)
def test_a_hostfile_that_cannot_be_used_stops_the_start(
    tmp_path: Path, started: list[Process], content: str | None, why: str
) -> None:
    """And not the first load, which may come days later."""
    file = tmp_path / "hosts.json"
    if content is not None:
        file.write_text(content)
    started.append(Process(tmp_path / "models", free_port(), OMLX_HOSTFILE=str(file)))
    _, log = started[-1].process.communicate(timeout=150)
    assert started[-1].process.returncode == 1
    assert log.startswith(f"Error: the hostfile {file} {why}")
    assert log.endswith("; write it with mlx.distributed_config, or leave the setting hostfile out\n")
