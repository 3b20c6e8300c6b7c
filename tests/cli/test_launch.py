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

from omlx.cli.launch_tools import TOOLS, choose_context
from omlx.client import VERSION_HEADER
from tests.cli.conftest import Omlx, run_omlx
from tests.cli.standin import SHOWN, StandIn, answer

CONTEXT = "GET /api/omlx/context?model=qwen3%3A8b"


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
        CONTEXT: answer(200, {"num_ctx": 40960, "max_num_ctx": 40960}),
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
    ("default", "largest", "wanted", "named", "chosen"),
    [
        (4096, 131_072, 65_536, 0, (65_536, 65_536)),
        (4096, 20_000, 65_536, 0, (20_000, 20_000)),  # as much as there is memory for
        (32_768, 40_960, 65_536, 0, (40_960, 40_960)),
        (262_144, 262_144, 65_536, 0, (262_144, 0)),  # the default will do
        (4096, 4096, 65_536, 0, (4096, 0)),
        (4096, 0, 65_536, 0, (4096, 0)),  # not known
        (0, 0, 65_536, 0, (0, 0)),
        (4096, 131_072, 0, 0, (4096, 0)),  # a tool that needs no more
        (4096, 131_072, 0, 8192, (8192, 8192)),
        (262_144, 262_144, 65_536, 16_384, (16_384, 16_384)),
    ],
)
def test_the_context_of_a_tool(default: int, largest: int, wanted: int, named: int, chosen: tuple[int, int]) -> None:
    assert choose_context(default, largest, wanted, named) == chosen


@pytest.mark.parametrize(
    ("default", "largest", "words", "said", "notes"),
    [
        (40_960, 40_960, (), 40_960, []),
        (4096, 40_960, (), 40_960, ["context of 40,960 tokens, the server's default is 4,096"]),
        (4096, 4096, (), 4096, ["4,096 tokens, too few for most agents"]),
        (40_960, 40_960, ("--num-ctx", "8192"), 8192, ["context of 8,192 tokens", "8,192 tokens, too few"]),
        (40_960, 40_960, ("--num-ctx", "99999"), 40_960, ["context of 40,960 tokens"]),  # what it was trained for
    ],
)
def test_an_agent_is_told_the_context_it_is_served_with(
    inline: Omlx,
    server: StandIn,
    home: dict[str, str],
    default: int,
    largest: int,
    words: tuple[str, ...],
    said: int,
    notes: list[str],
) -> None:
    server.script[CONTEXT] = answer(200, {"num_ctx": default, "max_num_ctx": largest})
    ran = inline("launch", "codex", "--print", *words, host=server.url, **home)
    assert ran.code == 0
    told = [line for line in ran.err.splitlines() if line.startswith("note: ")]
    assert len(told) == len(notes)
    assert all(note in line for note, line in zip(notes, told, strict=True))
    config = codex_config(ran.out)
    assert config["model_context_window"] == said
    headers = config["model_providers"]["omlx"].get("http_headers")
    assert headers == ({"X-OMLX-Num-Ctx": str(said)} if said != default or words else None)


def test_every_agent_asks_for_the_context_in_its_own_way(inline: Omlx, server: StandIn, home: dict[str, str]) -> None:
    server.script[CONTEXT] = answer(200, {"num_ctx": 4096, "max_num_ctx": 40_960})
    header = {"X-OMLX-Num-Ctx": "40960"}

    def printed(tool: str, **env: str) -> str:
        return inline("launch", tool, "--print", host=server.url, **{**home, **env}).out

    claude = exported(printed("claude"))
    assert claude["ANTHROPIC_CUSTOM_HEADERS"] == "X-OMLX-Num-Ctx: 40960"
    assert claude["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] == "40960"
    users = exported(printed("claude", ANTHROPIC_CUSTOM_HEADERS="X-Team: a"))
    assert users["ANTHROPIC_CUSTOM_HEADERS"] == "X-Team: a\nX-OMLX-Num-Ctx: 40960"
    opencode = json.loads(exported(printed("opencode"))["OPENCODE_CONFIG_CONTENT"])["provider"]["omlx"]
    assert opencode["options"]["headers"] == header
    assert opencode["models"]["qwen3:8b"]["limit"] == {"context": 40_960, "output": 10_240}
    text = printed("continue").split("<<'END'\n")[1].split("\nEND")[0]
    (model,) = yaml.safe_load(text)["models"]
    assert model["requestOptions"]["headers"] == header
    assert model["defaultCompletionOptions"] == {"contextLength": 40_960}


def exported(script: str) -> dict[str, str]:
    """The variables that a printed script sets."""
    words = shlex.split(script)
    return dict(word.split("=", 1) for before, word in pairwise(words) if before == "export")


def codex_config(script: str) -> dict[str, Any]:
    words = shlex.split(script.splitlines()[-1])
    return tomllib.loads("\n".join(word for flag, word in pairwise(words) if flag == "-c"))


def test_a_server_that_tells_no_context_is_used_with_its_default(
    inline: Omlx, server: StandIn, home: dict[str, str]
) -> None:
    del server.script[CONTEXT]  # a genuine Ollama
    ran = inline("launch", "codex", "--print", host=server.url, **home)
    assert (ran.code, ran.err) == (0, "using qwen3:8b\n")
    assert "model_context_window" not in ran.out


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
    printed = inline("launch", "codex", "--print", host=server.url, **home).out
    assert codex_config(printed)["model_providers"]["omlx"]["wire_api"] == "responses"
