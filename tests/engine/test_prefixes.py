"""With a prefix store, a prompt that was seen is not computed again, and replies are the same as without."""

from __future__ import annotations

from typing import Any

import pytest
from omlx_cache.store import PrefixStore, StoreConfig

from omlx.engine.engine import Engine, EngineConfig
from tests.engine.support import bare, loaded, prompt, run, spec


def stored(architecture: str) -> Engine:
    model = loaded(architecture, endless=True)
    config: dict[str, Any] = {"fingerprint": "test", "hot_bytes": 1 << 28, "block_size": 16}
    return Engine(model, EngineConfig(num_ctx=4096), PrefixStore(model.layout, StoreConfig(**config)))


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text", "qwen3_next", "falcon_h1", "deepseek_v3"])
def test_a_second_turn_starts_where_the_first_ended(architecture: str) -> None:
    machine = stored(architecture)
    first = run(machine, [spec(0, prompt(100), new=30), spec(1, prompt(45, 1), new=12)], every=4)
    assert first.tokens[0] == bare(architecture, prompt(100), 30)
    turn = prompt(100) + first.tokens[0] + prompt(20, 5)
    second = run(machine, [spec(2, turn, new=20), spec(3, prompt(45, 1) + prompt(9, 9), new=20)], every=2)
    assert second.tokens[2] == bare(architecture, turn, 20)
    assert second.tokens[3] == bare(architecture, prompt(45, 1) + prompt(9, 9), 20)
    usage = second.ends[2].usage
    assert usage is not None
    assert usage.cached_tokens >= 112
    assert usage.prompt_tokens == 150


def test_the_same_prompt_again_is_nearly_free_and_equal() -> None:
    machine = stored("llama")
    replies = [run(machine, [spec(at, prompt(200), new=10)]) for at in range(2)]
    assert replies[0].tokens[0] == replies[1].tokens[1]
    usage = replies[1].ends[1].usage
    assert usage is not None and usage.cached_tokens >= 192


def test_a_cancelled_request_does_no_harm_to_the_store() -> None:
    machine = stored("gemma3_text")
    machine.add(spec(0, prompt(120), new=50))
    for _ in range(6):
        machine.step()
    machine.cancel(0)
    machine.step()
    replies = run(machine, [spec(1, prompt(120), new=15)])
    assert replies.tokens[1] == bare("gemma3_text", prompt(120), 15)
