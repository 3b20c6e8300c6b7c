"""Clients of other people against the real stack; skipped unless `make test-clients` installed them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.peers.install import HERE, INSTRUCTOR_PYTHON, NODE_FOLDER, PYTHON
from tests.server.goldenfile import golden_server

pytestmark = pytest.mark.slow
PEERS = sorted(HERE.glob("*_peer.*"))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with golden_server(tmp_path_factory.mktemp("peers")) as client:
        yield str(client.base_url).rstrip("/")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("script", PEERS, ids=lambda path: path.stem.removesuffix("_peer"))
def test_a_client_finds_what_it_needs(url: str, script: Path) -> None:
    node = shutil.which("node")
    if script.suffix == ".mjs" and (node is None or not NODE_FOLDER.exists()):
        pytest.skip("needs node and npm: see `make test-clients`")
    python = INSTRUCTOR_PYTHON if script.stem == "instructor_peer" else PYTHON
    if not python.exists():
        pytest.skip("the clients are not installed: run `make test-clients`")
    words = [str(python), str(script), url] if node is None or script.suffix == ".py" else [
        node, str(script), url, str(NODE_FOLDER)
    ]  # fmt: skip
    # Their environment is their own: none of our paths, no proxy.
    env = {name: value for name, value in os.environ.items() if name in {"PATH", "HOME", "TMPDIR", "LANG"}}
    done = subprocess.run(words, capture_output=True, text=True, timeout=280, env=env)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.strip().endswith("ok")
