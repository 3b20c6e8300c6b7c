"""A conversation goes on after a restart of the server: only what is new is computed, and the text is the same."""

from __future__ import annotations

from pathlib import Path

import httpx

from tests.e2e.conftest import MODEL
from tests.support.server import ServerProcess

OPTIONS = {"temperature": 0, "num_predict": 12}
FIRST = [
    {"role": "system", "content": "You are a guide who knows every street of the old town. " * 3},
    {"role": "user", "content": "What is the capital of France?"},
]


def answer(server: ServerProcess, messages: list[dict[str, str]]) -> tuple[str, int, int]:
    """(text, tokens of the prompt, tokens of it that came from the store)."""
    body = {"model": MODEL, "messages": messages, "options": OPTIONS, "stream": False}
    reply = httpx.post(f"{server.url}/api/chat", json=body, timeout=120, trust_env=False).raise_for_status().json()
    return reply["message"]["content"], reply["prompt_eval_count"], reply.get("cached_tokens", 0)


def test_the_second_turn_computes_only_its_new_tokens_after_a_restart(server: ServerProcess, tmp_path: Path) -> None:
    env = {"OMLX_MODELS": str(server.models), "OMLX_SPARE_RUNNER": "false"}
    with ServerProcess(tmp_path, env=env) as before:
        text, first, cached = answer(before, FIRST)
        assert cached == 0
    second = [*FIRST, {"role": "assistant", "content": text}, {"role": "user", "content": "And of Italy?"}]
    with ServerProcess(tmp_path, env=env) as after:
        reply, count, cached = answer(after, second)
        assert first < cached < count
        told = httpx.get(f"{after.url}/api/omlx/requests", timeout=60, trust_env=False).raise_for_status().json()
        assert [request["disk_tokens"] for request in told["requests"] if request["cached_tokens"]] == [cached]
        assert count - cached <= 15  # The words of the new question, and the marks of turns.
        httpx.post(f"{after.url}/api/omlx/cache/clear", json={}, timeout=60, trust_env=False).raise_for_status()
        assert answer(after, second) == (reply, count, 0)
