"""`omlx launch`: tools are started with what they need, and no file of the user is lost."""

from __future__ import annotations

import json
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from omlx.cli.launch_tools import TOOLS
from omlx.client import VERSION_HEADER
from tests.cli.conftest import Omlx, run_omlx
from tests.cli.standin import SHOWN, StandIn, answer


def listed(name: str, *capabilities: str) -> dict[str, Any]:
    return {"name": name, "model": name, "modified_at": "2026-11-29T00:00:00Z", "size": 1, "digest": "0" * 64,
            "details": SHOWN["details"], "capabilities": list(capabilities)}  # fmt: skip


@pytest.fixture
def server() -> Iterator[StandIn]:
    shown = SHOWN | {"model_info": {"general.architecture": "qwen3", "qwen3.context_length": 40960},
                     "capabilities": ["completion", "tools"]}  # fmt: skip
    models = [listed("embed:latest", "embedding"), listed("qwen3:8b", "completion", "tools"), listed("old:latest")]
    script = {
        "HEAD /": answer(200, b"", **{VERSION_HEADER: "1"}),
        "POST /api/show": answer(200, shown),
        "GET /api/tags": answer(200, {"models": models}),
    }
    with StandIn(script) as running:
        yield running


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """Nothing of the user who runs the tests."""
    return {"HOME": str(tmp_path), "CLAUDE_CONFIG_DIR": "", "CODEX_HOME": "", "XDG_CONFIG_HOME": "", "OMLX_API_KEY": ""}


def test_the_tools_are_listed(inline: Omlx) -> None:
    ran = inline("launch")
    assert [line.split()[0] for line in ran.out.splitlines()] == ["NAME", *TOOLS]
    wrong = inline("launch", "emacs")
    assert (wrong.code, wrong.err) == (
        1, f"Error: emacs is not a tool that launch knows: {', '.join(TOOLS)}\n")  # fmt: skip


@pytest.mark.parametrize("name", TOOLS)
def test_what_is_printed_can_be_pasted_into_a_shell(
    inline: Omlx, server: StandIn, home: dict[str, str], name: str
) -> None:
    ran = inline("launch", name, "--print", host=server.url, **{**home, "OMLX_API_KEY": "se'cret"})
    assert (ran.code, ran.err) == (0, "using qwen3:8b\n")
    # Nothing was written by asking.
    assert list(Path(home["HOME"]).iterdir()) == []
    before, command = ran.out.removesuffix("\n").rsplit("\n", 1)
    script = f"{before}\nprintf '%s\\n' {command}\nenv"
    shell = subprocess.run(["sh", "-eu"], input=script, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert shell.returncode == 0, shell.stderr
    told = shell.stdout + "".join(file.read_text() for file in Path(home["HOME"]).rglob("*") if file.is_file())
    assert all(value in told for value in ("qwen3:8b", server.url, "se'cret"))


def test_a_tool_is_started_with_its_arguments_and_sees_the_server(
    server: StandIn, home: dict[str, str], tmp_path: Path
) -> None:
    program = tmp_path / "bin" / "claude"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@" "$ANTHROPIC_BASE_URL" "$ANTHROPIC_AUTH_TOKEN"\nexit 3\n')
    program.chmod(0o755)
    path = f"{program.parent}:/usr/bin:/bin"
    words = ("launch", "claude", "--model", "qwen3:8b", "--", "-p", "two words", "--model")
    ran = run_omlx(*words, host=server.url, **{**home, "PATH": path})
    assert ran.out.splitlines() == [
        "--model", "qwen3:8b", "-p", "two words", "--model", f"{server.url}", "omlx"]  # fmt: skip
    assert ran.code == 3
    absent = run_omlx("launch", "codex", host=server.url, **{**home, "PATH": path})
    assert absent.err.splitlines()[-1] == "Error: Codex is not installed; try `npm install -g @openai/codex`"


def test_a_users_file_is_changed_only_with_yes_and_can_be_had_back(
    inline: Omlx, server: StandIn, home: dict[str, str]
) -> None:
    file = Path(home["HOME"]) / ".claude" / "settings.json"
    file.parent.mkdir()
    before = '{"theme": "dark", "env": {"EDITOR": "vi", "ANTHROPIC_BASE_URL": "https://other"}}'
    file.write_text(before)
    file.chmod(0o640)
    refused = inline("launch", "claude", "--config", host=server.url, **home)
    assert refused.code == 1
    assert "give --yes" in refused.err
    assert "vi" not in refused.out.split()
    assert file.read_text() == before

    for _ in range(2):  # the second time does not take the first result for the original
        assert inline("launch", "claude", "--config", "--yes", host=server.url, **home).code == 0
    written = json.loads(file.read_text())
    assert (written["theme"], written["env"]["EDITOR"]) == ("dark", "vi")
    assert written["env"]["ANTHROPIC_BASE_URL"] == f"{server.url}"
    assert file.stat().st_mode & 0o777 == 0o640

    # What the user changes in between is kept as well, and comes back first.
    changed = file.read_text().replace("dark", "light").replace(server.url, "https://other")
    file.write_text(changed)
    assert inline("launch", "claude", "--config", "--yes", host=server.url, **home).code == 0
    assert json.loads(file.read_text())["theme"] == "light"
    for earlier in (changed, before):
        assert inline("launch", "claude", "--restore", host=server.url, **home).code == 0
        assert file.read_text() == earlier
        assert file.stat().st_mode & 0o777 == 0o640
    assert "no backup" in inline("launch", "claude", "--restore", host=server.url, **home).err


@pytest.mark.parametrize("there", [None, '{"theme": "dark"}'])
def test_a_configuration_that_is_only_shown_is_not_written(
    inline: Omlx, server: StandIn, home: dict[str, str], there: str | None
) -> None:
    file = Path(home["HOME"]) / ".claude" / "settings.json"
    if there is not None:
        file.parent.mkdir()
        file.write_text(there)
    for further in ((), ("--yes",)):
        ran = inline("launch", "claude", "--config", "--print", *further, host=server.url, **home)
        assert (ran.code, ran.err) == (0, "using qwen3:8b\n")
        place, shown = ran.out.split("\n", 1)
        assert place == f"# for {file}"
        assert json.loads(shown)["model"] == "qwen3:8b"
        assert "theme" not in shown
    if there is None:
        assert list(Path(home["HOME"]).iterdir()) == []
    else:
        assert [path.name for path in file.parent.iterdir()] == ["settings.json"]
        assert file.read_text() == there
    refused = inline("launch", "claude", "--restore", "--print", host=server.url, **home)
    assert (refused.code, "does not go with --print" in refused.err) == (1, True)


@pytest.mark.parametrize(
    ("known", "parameters", "said"),
    [(4096, "", "4096"), (40960, "num_ctx                        8192\n", "8192"), (40960, "", ""), (0, "", "")],
)
def test_a_context_too_small_for_agents_is_said(
    inline: Omlx, server: StandIn, home: dict[str, str], known: int, parameters: str, said: str
) -> None:
    info = {"general.architecture": "qwen3", "qwen3.context_length": known}
    shown = SHOWN | {"model_info": info, "parameters": parameters, "capabilities": ["completion", "tools"]}
    server.script["POST /api/show"] = answer(200, shown)
    ran = inline("launch", "claude", "--print", host=server.url, **home)
    assert ran.code == 0
    notes = [line for line in ran.err.splitlines() if line.startswith("note: ")]
    assert [f"a context of {said} tokens" in note for note in notes] == ([True] if said else [])


def test_a_file_that_is_no_json_is_left_alone(inline: Omlx, server: StandIn, home: dict[str, str]) -> None:
    file = Path(home["HOME"]) / ".config" / "opencode" / "opencode.json"
    file.parent.mkdir(parents=True)
    file.write_text("{ // mine\n}")
    ran = inline("launch", "opencode", "--config", "--yes", host=server.url, **home)
    assert ran.code == 1
    assert "cannot be read as JSON" in ran.err
    assert file.read_text() == "{ // mine\n}"


def test_new_files_are_what_their_tools_read(inline: Omlx, server: StandIn, home: dict[str, str]) -> None:
    def written(name: str, path: str) -> str:
        assert inline("launch", name, "--config", host=server.url, **home).code == 0
        return (Path(home["HOME"]) / path).read_text("utf-8")

    codex = tomllib.loads(written("codex", ".codex/omlx.config.toml"))
    assert codex["model_providers"][codex["model_provider"]]["base_url"] == f"{server.url}/v1"
    (model,) = yaml.safe_load(written("continue", ".continue/config.yaml"))["models"]
    assert (model["model"], model["apiBase"]) == ("qwen3:8b", f"{server.url}/v1")
    aider = yaml.safe_load(written("aider", ".aider.conf.yml"))
    assert aider["model"] == "ollama_chat/qwen3:8b"
    assert f"OLLAMA_API_BASE={server.url}" in aider["set-env"]
    opencode = json.loads(written("opencode", ".config/opencode/opencode.json"))
    assert opencode["provider"]["omlx"]["models"]["qwen3:8b"]["limit"]["context"] == 40960
    assert "configured by its environment" in inline("launch", "open-webui", "--config", host=server.url, **home).err


def test_codex_takes_the_provider_as_one_toml_value(inline: Omlx, server: StandIn, home: dict[str, str]) -> None:
    printed = inline("launch", "codex", "--print", host=server.url, **home).out.splitlines()[-1]
    words = shlex.split(printed)
    values = [word for flag, word in pairwise(words) if flag == "-c"]
    assert tomllib.loads("\n".join(values))["model_providers"]["omlx"]["wire_api"] == "responses"
