"""Prompts that are prefilled in one forward are answered as alone; the policy that puts them together is a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from omlx.engine.batch import Newcomers
from omlx.engine.engine import Engine
from omlx.engine.prefill import Prefill
from omlx.engine.scheduler import Chunk, choose_together
from omlx.engine.sequence import Sequence
from omlx.messages.failures import running_failed
from omlx.messages.load_spec import EngineConfig
from omlx.messages.request import Sampling
from tests.engine.support import bare, engine, loaded, prompt, run, spec, store_for
from tests.engine.test_exactness import BATCHABLE

LENGTHS = [40, 33, 1, 48, 47, 2, 90, 41, 1, 3, 44]
NEW = 9


@pytest.fixture
def forwards(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The tokens of each row of every forward over several prompts, as they happen."""
    seen: list[list[int]] = []
    real = Prefill.advance_together

    def watched(self: Prefill, counts: list[tuple[Sequence, int]]) -> Newcomers | None:
        seen.append([count for _, count in counts])
        return real(self, counts)

    monkeypatch.setattr(Prefill, "advance_together", watched)
    return seen


@pytest.mark.parametrize("architecture", BATCHABLE)
def test_a_burst_of_unequal_prompts_is_answered_as_alone(architecture: str, forwards: list[list[int]]) -> None:
    replies = run(
        engine(architecture, endless=True), [spec(at, prompt(length, at), new=NEW) for at, length in enumerate(LENGTHS)]
    )
    for at, length in enumerate(LENGTHS):
        assert replies.tokens[at] == bare(architecture, prompt(length, at), NEW), f"{architecture}, request {at}"
    assert max(map(len, forwards)) >= 3


@pytest.mark.parametrize("architecture", BATCHABLE)
def test_prompts_that_continue_restored_prefixes_are_answered_as_alone(
    architecture: str, forwards: list[list[int]], tmp_path: Path
) -> None:
    model = loaded(architecture, endless=True)
    store = store_for(model, tmp_path)
    heads = {at: prompt(length, at) for at, length in enumerate((64, 40, 75, 52))}
    config = EngineConfig(context_length=4096, max_concurrent_requests=16)
    run(Engine(model, config, store), [spec(at, tokens, new=4) for at, tokens in heads.items()])
    forwards.clear()
    turns = {at: [*tokens, *prompt(20 + 3 * at, at + 50)] for at, tokens in heads.items()}
    replies = run(Engine(model, config, store), [spec(at, tokens, new=NEW) for at, tokens in turns.items()])
    for at, tokens in turns.items():
        assert replies.tokens[at] == bare(architecture, tokens, NEW), f"{architecture}, request {at}"
        usage = replies.ends[at].usage
        assert usage is not None and usage.cached_tokens > 0
    assert any(len(counts) >= 2 for counts in forwards)
    store.close()


def test_a_prompt_of_which_only_the_last_token_is_left_needs_no_prefill(forwards: list[list[int]]) -> None:
    model = loaded("qwen3", endless=True)
    store = store_for(model)
    config = EngineConfig(context_length=4096)
    run(Engine(model, config, store), [spec(0, prompt(49), new=4)])
    machine = Engine(model, config, store)
    replies = run(machine, [spec(0, prompt(49), new=NEW)])
    assert replies.tokens[0] == bare("qwen3", prompt(49), NEW)
    assert machine.tokens_read == 1 and not forwards


PENALISED = Sampling(seed=4, temperature=1.2, repeat_penalty=1.3, repeat_last_n=16, frequency_penalty=0.3)


@pytest.mark.parametrize("sampling", [PENALISED, Sampling(seed=7), Sampling(seed=5, temperature=1.0, mirostat=2)])
def test_a_row_that_joins_before_its_first_token_samples_as_alone(sampling: Sampling) -> None:
    alone = run(engine(endless=True), [spec(0, prompt(30, 3), new=16, sampling=sampling)]).tokens[0]
    running = [spec(at, prompt(12 + at, at), new=40, sampling=sampling) for at in (1, 2)]
    machine = engine(endless=True)
    for one in running:
        machine.add(one)
    for _ in range(6):
        machine.step()
    replies = run(machine, [spec(at, prompt(30, 3), new=16, sampling=sampling) for at in (3, 4, 5)])
    assert [replies.tokens[at] for at in (3, 4, 5)] == [alone] * 3


def test_a_forward_that_fails_ends_only_the_prompt_that_causes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = loaded("llama", endless=True)
    culprit = prompt(44, 2)
    machine = Engine(model, EngineConfig(context_length=4096, max_concurrent_requests=16))
    real = machine._prompts.prefill._model

    class Network:
        layers = real.layers

        def __call__(self, tokens: Any, **options: Any) -> Any:
            if any(row[:8] == culprit[:8] for row in tokens.tolist()):
                raise RuntimeError("injected")
            return real(tokens, **options)

    monkeypatch.setattr(machine._prompts.prefill, "_model", Network())
    replies = run(machine, [spec(at, prompt(40 + 2 * at, at), new=NEW) for at in range(5)])
    for at in (0, 1, 3, 4):
        assert replies.tokens[at] == bare("llama", prompt(40 + 2 * at, at), NEW)
    failure = replies.ends[2].failure
    assert failure == ("internal", running_failed(RuntimeError("injected")))


# -------------------------------------------------------------------- policy
@pytest.mark.parametrize(
    ("first", "others", "budget", "padding", "expected"),
    [
        # Unequal rows within a quarter of padding.
        (Chunk(0, 100, True), [Chunk(1, 90, True), Chunk(2, 80, True)], 1000, True, {0: 100, 1: 90, 2: 80}),
        # A short one would be mostly padding; one behind it is still taken.
        (Chunk(0, 100, True), [Chunk(1, 9, True), Chunk(2, 99, True)], 1000, True, {0: 100, 2: 99}),
        # The forward costs rows times the widest.
        (Chunk(0, 100, True), [Chunk(1, 100, True), Chunk(2, 100, True)], 250, True, {0: 100, 1: 100}),
        (Chunk(0, 100, True), [Chunk(1, 130, True), Chunk(2, 100, True)], 250, True, {0: 100, 2: 100}),
        # A chunk that is all a step has time for goes alone.
        (Chunk(0, 256, True), [Chunk(1, 100, True)], 256, True, {0: 256}),
        # Without padding every row takes as many as the smallest, unless that is too little for the first.
        (Chunk(0, 100, True), [Chunk(1, 300, True), Chunk(2, 80, True)], 1000, False, {0: 80, 1: 80, 2: 80}),
        (Chunk(0, 100, True), [Chunk(1, 60, True)], 1000, False, {0: 100}),
        # Empty caches and filled ones are not put together; nor anything where the model does not allow it.
        (Chunk(0, 100, True), [Chunk(1, 100, False)], 1000, True, {0: 100}),
        (Chunk(0, 100, True), [Chunk(1, 100, True)], 1000, None, {0: 100}),
    ],
)
def test_which_prompts_are_prefilled_together(
    first: Chunk, others: list[Chunk], budget: int, padding: bool | None, expected: dict[int, int]
) -> None:
    assert choose_together(first, others, budget, padding=lambda fresh: padding) == expected
