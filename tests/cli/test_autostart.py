"""A verb that finds no server starts one in the background: for this machine only, once, with a reason if it fails."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from omlx.service.autostart import may_start
from omlx.settings import Settings, parse_host
from tests.cli.conftest import Omlx
from tests.support.server import free_port

STARTED = re.compile(r"^Starting the oMLX server in the background \(process (\d+), log (\S+)\)$", re.MULTILINE)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment of its own: home, store and port. Whatever was started in it is ended."""
    env = {
        "OLLAMA_HOST": f"127.0.0.1:{free_port()}",
        "HOME": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "OMLX_MODELS": str(tmp_path / "models"),
        "OMLX_PAGED_SSD_CACHE_DIR": str(tmp_path / "kv"),
        "OMLX_SPARE_RUNNER": "false",
        "OMLX_AUTOSTART": "true",
    }
    yield env
    for pid in _servers(tmp_path):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 120
    while _servers(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _servers(tmp_path), "the server ignores SIGTERM"


def _servers(home: Path) -> list[int]:
    """Processes that were started with this home and serve."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            environment = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"serve" in words and b"HOME=" + os.fsencode(home) in environment:
            found.append(int(folder.name))
    return found


linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds its processes in /proc")


def call(env: dict[str, str], *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "omlx", *words],
        env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@linux
def test_the_first_verb_starts_a_server_and_the_next_ones_find_it(omlx: Omlx, place: dict[str, str]) -> None:
    host = place.pop("OLLAMA_HOST")
    first = omlx("list", host=host, **place)
    assert (first.code, first.out) == (0, "NAME    ID    SIZE    MODIFIED \n")
    assert STARTED.fullmatch(first.err.rstrip("\n")), first.err
    second = omlx("ps", host=host, **place)
    assert (second.code, second.err) == (0, "")
    (log,) = (Path(place["HOME"]) / "state").rglob("server-*.log")
    assert "Listening on" in log.read_text()
    (pid,) = _servers(Path(place["HOME"]))
    assert os.getsid(pid) == pid, "it has a session of its own and outlives the terminal"
    assert Path(f"/proc/{pid}/cwd").resolve() == Path(place["HOME"]).resolve()


@linux
def test_of_many_starters_one_starts_and_all_succeed(place: dict[str, str]) -> None:
    starters = [call(place, "list") for _ in range(4)]
    results = [starter.communicate(timeout=150) for starter in starters]
    assert [starter.returncode for starter in starters] == [0] * 4, results
    assert sum(len(STARTED.findall(errors.decode())) for _, errors in results) == 1
    assert len(_servers(Path(place["HOME"]))) == 1


def test_a_server_that_does_not_come_up_is_explained_by_its_log(omlx: Omlx, place: dict[str, str]) -> None:
    host = place.pop("OLLAMA_HOST")
    ran = omlx("list", host=host, **{**place, "OLLAMA_ORIGINS": "no-scheme"})
    assert ran.code == 1
    assert ran.out == ""
    assert "Error: the server ended with exit code 1 before it answered. The end of " in ran.err
    assert "no-scheme" in ran.err.splitlines()[-1]


def test_version_and_help_start_nothing(omlx: Omlx, place: dict[str, str]) -> None:
    host = place.pop("OLLAMA_HOST")
    assert "could not connect" in omlx("-v", host=host, **place).out
    omlx("run", "--help", host=host, **place)
    assert not (Path(place["HOME"]) / "state").exists()


def test_autostart_can_be_switched_off(omlx: Omlx, place: dict[str, str]) -> None:
    host = place.pop("OLLAMA_HOST")
    ran = omlx("list", host=host, **{**place, "OMLX_AUTOSTART": "0"})
    assert ran.err == f"Error: could not connect to omlx server at http://{host}, run 'omlx serve' to start it\n"


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1:11434", True),
        ("localhost:1234", True),
        ("[::1]:1234", True),
        ("0.0.0.0:11434", False),
        (":11434", False),
        ("192.168.1.5:11434", False),
        ("https://localhost:1234", False),
        ("http://localhost:1234/ollama", False),
        ("example.com", False),
    ],
)
def test_only_a_server_of_this_machine_is_started(host: str, allowed: bool) -> None:
    assert may_start(Settings(host=parse_host(host))) is allowed
    assert not may_start(Settings(host=parse_host(host), autostart=False))
