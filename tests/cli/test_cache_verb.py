"""`omlx cache` tells the truth about what was stored, across a restart too."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from tests.cli.conftest import make_model, run_omlx
from tests.support.lessons import STORY
from tests.support.server import ServerProcess
from tests.support.tiny import tiny_model

NAME = "cached"
LONG = [
    {"role": "system", "content": STORY * 3},
    {"role": "user", "content": "Hello"},
]


def cached_tokens(server: ServerProcess, messages: list[dict[str, str]]) -> tuple[int, int, str]:
    """(tokens from the store, tokens of the prompt, answer)."""
    body = {"model": NAME, "messages": messages, "stream": False, "options": {"temperature": 0, "num_predict": 8}}
    reply = httpx.post(f"{server.url}/api/chat", json=body, timeout=60, trust_env=False).json()
    return reply.get("cached_tokens", 0), reply["prompt_eval_count"], reply["message"]["content"]


def loaded(server: ServerProcess) -> list[str]:
    models = httpx.get(f"{server.url}/api/ps", timeout=60, trust_env=False).json()["models"]
    return [model["name"] for model in models]


@pytest.mark.slow
def test_a_prefix_survives_a_restart_and_the_verbs_say_so(tmp_path: Path) -> None:
    env = {"OMLX_SPARE_RUNNER": "false"}
    with ServerProcess(tmp_path, env=env) as server:
        make_model(NAME, tiny_model("llama", taught=True), tmp_path, server.url)
        first, count, answer = cached_tokens(server, LONG)
        again, _, same = cached_tokens(server, LONG)
        assert first == 0
        assert count > 300
        assert again == count - 1
        assert same == answer
        shown = run_omlx("cache", host=server.url).out.splitlines()
        assert shown[0].startswith("NAME")
        assert shown[1].split()[:2] == [f"{NAME}:latest", "1/2"]
        assert run_omlx("cache", "save", "talk", NAME, host=server.url).out.startswith("kept the last conversation")
        assert run_omlx("cache", "save", "  ", NAME, host=server.url).code == 1
    with ServerProcess(tmp_path, env=env) as server:
        listed = run_omlx("cache", "ls", host=server.url).out
        assert re.search(rf"^{NAME}:latest +\d+ ", listed, re.MULTILINE)
        assert re.search(rf"^talk +{NAME}:latest +\d", listed, re.MULTILINE)
        assert re.fullmatch(r"\d+ records are intact\n", run_omlx("cache", "verify", host=server.url).out)
        assert loaded(server) == []
        found = run_omlx("cache", "explain", NAME, host=server.url, stdin="Tell me a story.")
        assert found.code == 0
        assert "tokens are stored" in found.out
        restored, _, same = cached_tokens(server, LONG)
        assert restored > count / 2
        assert same == answer
        assert "is in the memory" in run_omlx("cache", "load", "talk", host=server.url).out
        assert run_omlx("cache", "rm", "talk", host=server.url).code == 0
        assert "no session 'talk'" in run_omlx("cache", "rm", "talk", host=server.url).err
        assert "no session 'talk'" in run_omlx("cache", "load", "talk", host=server.url).err
        cleared = run_omlx("cache", "clear", host=server.url).out
        assert re.fullmatch(r"cleared the cache of all models: [1-9]\d* records\n", cleared)
        forgotten, _, same = cached_tokens(server, LONG)
        assert forgotten == 0
        assert same == answer
        assert run_omlx("cache", "burn", host=server.url).code == 1
    with ServerProcess(tmp_path, env=env) as server:
        # What is on disk can be cleared of a model that is not loaded.
        assert f"{NAME}:latest" in run_omlx("cache", "ls", host=server.url).out
        assert " 0 records" not in run_omlx("cache", "clear", NAME, host=server.url).out
        assert f"{NAME}:latest" not in run_omlx("cache", "ls", host=server.url).out
        assert loaded(server) == []
