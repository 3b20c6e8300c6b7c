"""With a prefix store, a prompt that was seen is not computed again, and replies are the same as without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omlx_cache.store import PrefixStore

from omlx.engine.engine import Engine
from omlx.messages.load_spec import EngineConfig
from tests.engine.support import Replies, bare, loaded, prompt, run, spec, store_for


def stored(architecture: str, *, store: PrefixStore | None = None, **config: Any) -> Engine:
    model = loaded(architecture, endless=True)
    return Engine(model, EngineConfig(context_length=4096, **config), store or store_for(model))


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


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text"])
def test_what_an_ended_reply_wrote_is_kept(architecture: str) -> None:
    machine = stored(architecture)
    replies = Replies()
    machine.add(spec(0, prompt(100), new=500))
    while len(replies.tokens.get(0, [])) < 40:
        replies.take(machine.step())
    machine.end(0)
    replies.take(machine.step())
    turn = prompt(100) + replies.tokens[0] + prompt(20, 5)
    second = run(machine, [spec(1, turn, new=20)])
    assert second.tokens[1] == bare(architecture, turn, 20)
    usage = second.ends[1].usage
    assert usage is not None and usage.cached_tokens >= 128


@pytest.mark.parametrize(
    ("architecture", "own"), [("llama", 20), ("llama", 2), ("gemma3_text", 20), ("qwen3_next", 20)]
)
def test_prompts_that_arrive_together_compute_what_they_share_once(architecture: str, own: int) -> None:
    machine = stored(architecture, max_concurrent_requests=16)
    shared = prompt(301)
    prompts = [shared + prompt(own, seed) for seed in range(1, 17)]
    replies = run(machine, [spec(at, tokens, new=6) for at, tokens in enumerate(prompts)])
    assert machine.tokens_read == len(shared) + 16 * own
    for at, tokens in enumerate(prompts):
        assert replies.tokens[at] == bare(architecture, tokens, 6)
        usage = replies.ends[at].usage
        assert usage is not None and usage.cached_tokens == (len(shared) if at else 0)


def test_a_prompt_whose_leader_leaves_is_read_all_the_same() -> None:
    machine = stored("llama")
    shared = prompt(400)
    for at in range(3):
        machine.add(spec(at, shared + prompt(20, at + 1), new=5))
    machine.cancel(0)
    replies = run(machine, [])
    assert 0 not in replies.ends
    assert machine.tokens_read == len(shared) + 2 * 20
    for at in (1, 2):
        assert replies.tokens[at] == bare("llama", shared + prompt(20, at + 1), 5)


def test_an_urgent_prompt_does_not_wait_for_one_in_the_background() -> None:
    machine = stored("llama")
    shared = prompt(200)
    machine.add(spec(0, shared + prompt(5, 1), new=4, priority="background"))
    replies = run(machine, [spec(1, shared + prompt(5, 2), new=4)])
    usage = replies.ends[1].usage
    assert usage is not None
    assert replies.tokens[1] == bare("llama", shared + prompt(5, 2), 4)


@pytest.mark.parametrize("architecture", ["mamba2", "falcon_h1", "qwen3_next"])
def test_recurrent_models_are_restored_where_prompts_are_expected_to_part(architecture: str) -> None:
    machine = stored(architecture)
    system = prompt(90)
    run(machine, [spec(0, system + prompt(30, 1), new=4, boundaries=[len(system)])])
    other = system + prompt(25, 2)
    replies = run(machine, [spec(1, other, new=8)])
    assert replies.tokens[1] == bare(architecture, other, 8)
    usage = replies.ends[1].usage
    assert usage is not None and usage.cached_tokens == len(system)


def test_what_a_waiting_prompt_wants_is_read_from_disk_before_its_turn(tmp_path: Path) -> None:
    earlier = store_for(loaded("llama"), tmp_path)
    run(stored("llama", store=earlier), [spec(0, prompt(300), new=2)])
    earlier.close()
    store = store_for(loaded("llama"), tmp_path)
    machine = stored("llama", store=store, max_concurrent_requests=1)
    machine.add(spec(1, prompt(50, 3), new=40))
    machine.add(spec(2, prompt(300), new=5))
    machine.step()
    assert machine.waiting == 1
    assert store.cold is not None and store.cold._ahead is not None and len(store.cold._ahead) > 0
    replies = run(machine, [])
    usage = replies.ends[2].usage
    assert usage is not None and usage.disk_tokens == 299
    assert len(store.cold._ahead) == 0
    store.close()
