"""Guesses from the text itself change how fast a lone reply comes, and nothing else."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from omlx_cache.store import PrefixStore

from bench.speculative import Scripted
from omlx.engine.draft.prompt_lookup import LEAST_MATCH, MOST_MATCH, continuation
from omlx.engine.engine import Engine
from omlx.messages.load_spec import EngineConfig
from omlx.messages.request import Limits, Sampling
from tests.engine.support import Replies, bare, engine, loaded, prompt, run, spec, store_for
from tests.engine.test_speculative import Clock


def array(tokens: list[int]) -> Any:
    return np.array(tokens, np.int32)


@pytest.mark.parametrize(
    ("tokens", "count", "expected"),
    [
        ([1, 2, 3, 4, 9, 1, 2], 3, [3, 4, 9]),
        ([1, 2, 3, 1, 2, 4, 1, 2], 1, [4]),  # the latest of several
        ([5, 1, 2, 3, 6, 1, 2, 4, 5, 1, 2], 1, [3]),  # more tokens agree
        ([1, 2, 9, 2], 3, []),  # one token is too few
        ([1, 2, 1, 2], 4, [1, 2]),  # no more than there is
        ([7, 7, 7], 4, [7]),
        ([7], 4, []),
        ([], 4, []),
    ],
)
def test_what_followed_the_last_time(tokens: list[int], count: int, expected: list[int]) -> None:
    assert continuation(array(tokens), count).tolist() == expected


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 6))
def test_it_is_the_best_place_of_all(tokens: list[int], count: int) -> None:
    def agreeing(end: int) -> int:
        """Tokens before `end` that are those before the end of all."""
        most = min(end, MOST_MATCH)
        return next((at for at in range(most) if tokens[end - 1 - at] != tokens[-1 - at]), most)

    found = continuation(array(tokens), count).tolist()
    best = max(range(1, len(tokens)), key=lambda end: (agreeing(end), end), default=0)
    if best and agreeing(best) >= LEAST_MATCH:
        assert found == tokens[best : best + count]
    else:
        assert found == []


def looking_up(architecture: str = "llama", store: PrefixStore | None = None) -> Engine:
    config = EngineConfig(context_length=4096, max_concurrent_requests=16, prompt_lookup=True)
    return Engine(loaded(architecture, endless=True), config, store, clock=iter(range(1_000_000)).__next__)


def repetitive(architecture: str = "llama") -> list[int]:
    """A prompt that holds the reply to it, and ends where that begins: an untrained model then says it again."""
    start = prompt(24)
    return start + bare(architecture, start, 40) + start


def editing(length: int) -> tuple[list[int], list[int]]:
    """A prompt, and the script of a conversation that repeats it with one token in twenty changed."""
    tokens = prompt(length)
    return tokens, tokens + [token + 1 if at % 20 == 19 else token for at, token in enumerate(tokens)] + [0] * 8


@pytest.mark.parametrize("architecture", ["llama", "qwen3_moe"])
def test_a_text_that_is_repeated_with_changes_comes_in_fewer_steps_to_the_token(architecture: str) -> None:
    tokens, script = editing(300)
    gains = {token_s: gain(architecture, tokens, script, token_s) for token_s in (0.01, 1.0)}
    assert gains[0.01] > 2, "checking a guess costs next to nothing"
    assert gains[1.0] > 0.95, "checking a guess costs as much as a step"


def gain(architecture: str, tokens: list[int], script: list[int], token_s: float) -> float:
    """Speed of a scripted reply, of plain decoding's; the model takes a second a forward and so much a token."""
    clock = Clock()

    class Timed(Scripted):
        def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
            clock.now += 1.0 + token_s * tokens.shape[1]
            return super().__call__(tokens, cache)

    model = loaded(architecture, endless=True)
    timed = msgspec.structs.replace(model, model=Timed(model.model, script), token_s=token_s)
    config = EngineConfig(context_length=4096, prompt_lookup=True)
    machine = Engine(timed, config, None, clock=clock)
    new = len(tokens)
    assert run(machine, [spec(0, tokens, new=new)]).tokens[0] == script[len(tokens) :][:new]
    assert machine.guesses is not None and 0 < machine.guesses[1] <= machine.guesses[0]
    return new * (1.0 + token_s) / (clock.now - 1.0 - token_s * len(tokens))


@pytest.mark.parametrize("sampling", [Sampling(temperature=0), Sampling(temperature=0.7, seed=3, top_k=3)])
def test_a_sampled_reply_is_the_one_without_guesses(sampling: Sampling) -> None:
    tokens = repetitive()
    expected = run(engine("llama", endless=True), [spec(0, tokens, new=80, sampling=sampling)]).tokens[0]
    machine = looking_up()
    assert run(machine, [spec(0, tokens, new=80, sampling=sampling)]).tokens[0] == expected


def test_what_it_read_of_one_request_is_not_said_in_another() -> None:
    machine = looking_up()
    for at in range(3):
        tokens = prompt(30 + at, at)
        assert run(machine, [spec(at, tokens, new=120)]).tokens[at] == bare("llama", tokens, 120)


def test_another_request_joins_and_leaves_within_rounds() -> None:
    machine = looking_up()
    first, second = prompt(30), prompt(21, 1)
    replies = run(machine, [spec(0, first, new=200), spec(1, second, new=30)], every=40)
    assert replies.tokens[0] == bare("llama", first, 200)
    assert replies.tokens[1] == bare("llama", second, 30)


def test_limits_hold_to_the_token_and_none_means_none() -> None:
    machine = looking_up()
    for new in (1, 2, 57, 58):
        assert len(run(machine, [spec(new, prompt(30), new=new)]).tokens[new]) == new
    before = machine.guesses
    limits = Limits(num_predict=200, draft_num_predict=0)
    assert len(run(machine, [spec(99, prompt(30), limits=limits)]).tokens[99]) == 200
    assert machine.guesses == before


def test_a_reply_cancelled_within_a_round_leaves_the_next_one_unharmed() -> None:
    machine = looking_up()

    def cancel(step: int, _: Replies) -> None:
        if step == 60:
            machine.cancel(0)

    run(machine, [spec(0, prompt(30), new=400)], after_step=cancel)
    assert run(machine, [spec(1, prompt(30), new=100)]).tokens[1] == bare("llama", prompt(30), 100)


def test_what_a_reply_leaves_in_the_store_is_right(tmp_path: Any) -> None:
    model = loaded("llama", endless=True)
    store = store_for(model, tmp_path)
    machine = looking_up(store=store)
    first = run(machine, [spec(0, prompt(30), new=200)]).tokens[0]
    longer = [*prompt(30), *first, 5, 6, 7]
    assert run(machine, [spec(1, longer, new=20)]).tokens[1] == bare("llama", longer, 20)


def test_models_whose_caches_cannot_take_tokens_back_do_without() -> None:
    config = EngineConfig(context_length=4096, prompt_lookup=True)
    assert Engine(loaded("gemma3_text"), config, None).guesses is None
    assert Engine(loaded("llama"), config, None).guesses == (0, 0)
