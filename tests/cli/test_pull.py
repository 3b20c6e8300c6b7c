"""A pull through everything: command line, server and a Hub, which may be slow or cut off."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.cli.conftest import Omlx, run_omlx
from tests.support.hub import FakeHub
from tests.support.server import ServerProcess
from tests.support.tiny import tiny_model

NAME = "hf.co/org/tiny"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeHub]:
    root = tmp_path_factory.mktemp("hub")
    shutil.copytree(tiny_model("llama", taught=True), root / "org" / "tiny")
    with FakeHub(root) as running:
        yield running


@pytest.fixture(scope="module")
def puller(hub: FakeHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    env = {**hub.env, "OMLX_SPARE_RUNNER": "false"}
    with ServerProcess(tmp_path_factory.mktemp("puller"), env=env) as server:
        yield server


def test_a_pull_that_was_interrupted_is_finished_by_the_next_one(
    hub: FakeHub, puller: ServerProcess, omlx: Omlx
) -> None:
    hub.faults.bytes_per_s = 200_000
    process = subprocess.Popen(
        [sys.executable, "-m", "omlx", "pull", NAME],
        env={**os.environ, "OLLAMA_HOST": puller.url, "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    assert process.stderr.readline() == b"pulling manifest\n"
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert (process.returncode, out) == (130, b"")
    assert run_omlx("list", host=puller.url).out.count("\n") == 1, "nothing half is listed"
    hub.reset()
    ran = omlx("pull", NAME, host=puller.url)
    assert (ran.code, ran.out) == (0, "")
    lines = ran.err.splitlines()
    assert (lines[0], lines[-1]) == ("pulling manifest", "success")
    assert any(line.startswith("pulling ") and " 100% " in line for line in lines), ran.err
    assert "\x1b" not in ran.err
    listed = omlx("list", host=puller.url).out.splitlines()
    assert [line.split()[0] for line in listed] == ["NAME", f"{NAME}:latest"]


def test_a_repository_that_is_not_there_is_said_so(puller: ServerProcess, omlx: Omlx) -> None:
    ran = omlx("pull", "hf.co/org/nothing", host=puller.url)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.splitlines()[-1].startswith("Error: pull model manifest: ")
