"""Fixtures of the command line's tests: how a user's shell calls `omlx`, and a real server with taught models."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from omlx.cli import main
from omlx.cli.console import effective
from tests.support.server import ServerProcess
from tests.support.tiny import tiny_model

PLAIN, THINKER = "tiny", "thinker"
"""Names of the server's models; both answer `tests.support.lessons` word for word, the second one thinks first."""


class Ran(NamedTuple):
    """What a command left: exit code and both streams."""

    code: int
    out: str
    err: str


Omlx = Callable[..., Ran]


def run_omlx(*words: str, host: str = "127.0.0.1:1", stdin: str | None = None, timeout: float = 150, **env: str) -> Ran:
    """Call `omlx WORDS…`: `host` is OLLAMA_HOST, `stdin` what is piped in (None: /dev/null), the rest environment."""
    done = subprocess.run(
        [sys.executable, "-m", "omlx", *words],
        env={**os.environ, "OLLAMA_HOST": host, "OMLX_AUTOSTART": "false", **env},
        stdin=subprocess.DEVNULL if stdin is None else None,
        input=None if stdin is None else stdin.encode(),
        capture_output=True,
        timeout=timeout,
    )
    return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.fixture
def omlx() -> Omlx:
    """`run_omlx`, by default for an address where nobody listens."""
    return run_omlx


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Omlx]:
    """The same without a process of its own: for tests that only look at what is sent and printed."""

    def call(*words: str, host: str = "127.0.0.1:1", stdin: str = "", **env: str) -> Ran:
        for name, value in {"OLLAMA_HOST": host, "OMLX_AUTOSTART": "false", **env}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        effective.cache_clear()
        capsys.readouterr()
        code = main(words)
        return Ran(code, *capsys.readouterr())

    yield call
    effective.cache_clear()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, own_folders: None) -> Iterator[ServerProcess]:
    """A real server; its models are made with `omlx create`, as a user would."""
    folder = tmp_path_factory.mktemp("cli-server")
    with ServerProcess(folder) as running:
        for name, architecture in ((PLAIN, "llama"), (THINKER, "qwen3")):
            make_model(name, tiny_model(architecture, taught=True), folder, running.url)
        yield running


def make_model(name: str, weights: Path, folder: Path, host: str, *lines: str) -> Ran:
    """`omlx create` of a greedy model over `weights`; `lines` are further lines of its Modelfile."""
    modelfile = folder / f"Modelfile.{name}"
    modelfile.write_text("\n".join([f"FROM {weights}", "PARAMETER temperature 0", *lines]), "utf-8")
    ran = run_omlx("create", name, "-f", str(modelfile), host=host)
    assert ran.code == 0, ran.err
    return ran


@pytest.fixture
def real(server: ServerProcess) -> Omlx:
    """`omlx` against the real server."""

    def call(*words: str, stdin: str | None = None, timeout: float = 150, **env: str) -> Ran:
        return run_omlx(*words, host=server.url, stdin=stdin, timeout=timeout, **env)

    return call
