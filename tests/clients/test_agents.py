"""Coding agents from npm, started by `omlx launch`: one turn with a tool call, through the real server.

The model is scripted (see `agent_runner`), since a tiny one cannot read prompts of ten thousand tokens; everything
between it and the agent is real. Skipped unless `make test-clients` installed them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from omlx.settings import Settings
from tests.clients.agent_runner import wish
from tests.clients.peers.install import NODE_FOLDER
from tests.server.local import LocalServer, stocked

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]
ROOT = Path(__file__).parents[2]
BIN = NODE_FOLDER / "node_modules" / ".bin"
SECRET = "the secret word is marzipan"
READ = {"command": "cat note.txt", "description": "read a note"}

AGENTS = {
    "claude": ("claude", ["-p", wish("Bash", **READ), "--allowedTools", "Bash"]),
    "codex": ("codex", ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox",
                        wish("exec_command", cmd="cat note.txt")]),
    "opencode": ("opencode", ["run", wish("bash", **READ)]),
    "continue": ("cn", ["-p", "--auto", wish("Bash", command="cat note.txt")]),
}  # fmt: skip
"""The name `omlx launch` knows, the program, and what it is told."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    root = tmp_path_factory.mktemp("agents")
    command = (sys.executable, "-m", "tests.clients.agent_runner")
    settings = Settings(models=str(root), spare_runner=False, context_length=65_536)
    with LocalServer(stocked(root), settings, command) as running:
        yield running


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_calls_a_tool_and_tells_what_it_said(server: LocalServer, tmp_path: Path, name: str) -> None:
    program, words = AGENTS[name]
    if not (BIN / program).exists():
        pytest.skip("the agents are not installed: run `make test-clients`")
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "note.txt").write_text(SECRET)
    env = {
        # A home of its own: no settings, no sign-in, nothing left behind.
        "HOME": str(tmp_path), "TMPDIR": str(tmp_path), "LANG": "C.UTF-8", "OMLX_HOST": server.url,
        "PATH": f"{BIN}:{os.environ['PATH']}", "OMLX_AUTOSTART": "false",
        "OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in (".", "registry", "cache")),
    }  # fmt: skip
    command = [sys.executable, "-m", "omlx", "launch", name, "--model", "thinker", "--", *words]
    done = subprocess.run(
        command, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The tool said:" in done.stdout, done.stdout + done.stderr
    assert SECRET in done.stdout
