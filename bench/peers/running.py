"""A server of a comparison on its own port: oMLX as a user starts it, or a peer. Started, asked, stopped."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Protocol

import httpx
from omlx_registry import Registry

from bench.peers import PEERS, Model, environment, python_of, version_of
from omlx.bench.target import BenchTarget
from tests.support.server import ServerProcess, free_port

OMLX = "omlx"
START_S = 300.0
STOP_S = 30.0


class Running(Protocol):
    """`targets` are the run's models as this server calls them; the first is the one that is measured.

    `mlx`: it stands on MLX. `switches`: it loads whatever model is asked for. `pid` is 0 for a server that has not
    been started, or is not ours to start.
    """

    name: str
    version: str
    mlx: bool
    switches: bool
    targets: list[BenchTarget]

    def start(self) -> object: ...
    def stop(self) -> object: ...
    @property
    def pid(self) -> int: ...


class Omlx:
    """`omlx serve`; its models are registered by hard link."""

    name, mlx, switches = OMLX, True, True

    def __init__(self, folder: Path, models: Sequence[Model], env: Mapping[str, str]) -> None:
        registry = Registry(folder / "models", [])
        for model in models:
            registry.add_model_folder(model.name, model.mlx)
        self.version = f"{_own_version()}, mlx {version('mlx')}"
        self._server = ServerProcess(folder, env=env)
        self.targets = [
            BenchTarget(url=self._server.url, api="openai", model=model.name, context=model.context) for model in models
        ]

    def start(self) -> None:
        self._server.start(timeout_s=START_S)

    def stop(self) -> None:
        self._server.stop(timeout_s=STOP_S)

    @property
    def pid(self) -> int:
        return self._server.process.pid if self._server.process is not None else 0


class Other:
    """A peer. Its log is kept for the message of a failure."""

    def __init__(self, name: str, folder: Path, models: Sequence[Model]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        peer, port = PEERS[name], free_port()
        self.name, self.mlx, self.switches = name, peer.mlx, peer.switches
        self.version = version_of(name)
        self._folder = folder
        self._log = folder / "log"
        self._command = peer.command(python_of(name), models[0], port)
        self._url = f"http://127.0.0.1:{port}"
        self._process: subprocess.Popen[bytes] | None = None
        self.targets = [BenchTarget(url=self._url, api="openai", model=peer.called(model)) for model in models]

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, env=environment(self._folder), stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with {self._process.returncode}:\n{self._end_of_log()}")
            try:
                if httpx.get(f"{self._url}/health", timeout=5, trust_env=False).status_code == httpx.codes.OK:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        self.stop()
        raise RuntimeError(f"{self.name} did not answer within {START_S:.0f} s:\n{self._end_of_log()}")

    def stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    def _end_of_log(self) -> str:
        return self._log.read_text("utf-8", "replace")[-3000:]


class Given:
    """A server that runs already, an Ollama for instance; `version` says where."""

    mlx = switches = False
    pid = 0

    def __init__(self, name: str, url: str, model: str) -> None:
        self.name, self.version = name, f"at {url}"
        self.targets = [BenchTarget(url=url.rstrip("/").removesuffix("/v1"), api="openai", model=model)]

    def start(self) -> None: ...
    def stop(self) -> None: ...


def make(name: str, folder: Path, models: Sequence[Model], env: Mapping[str, str] | None = None) -> Running:
    """A server that is not started yet. `env` are settings for oMLX; RuntimeError where a peer is not installed."""
    return Omlx(folder, models, env or {}) if name == OMLX else Other(name, folder, models)


def _own_version() -> str:
    try:
        return version("omlx")
    except PackageNotFoundError:  # on a machine where it runs from its folder
        return "from source"
