"""An engine that runs for long holds no more than one that has just begun."""

from __future__ import annotations

import gc
import random
from typing import Any

import mlx.core as mx
import pytest

from omlx.engine.engine import Engine
from omlx.messages.request import Sampling
from tests.engine.support import Replies, engine, prompt, spec


def live_arrays() -> int:
    gc.collect()
    return sum(isinstance(item, mx.array) for item in gc.get_objects())


def churn(machine: Engine, steps: int, chance: random.Random) -> None:
    """Requests join and leave, some cancelled, for so many steps; then all end."""
    replies, next_id = Replies(), 0
    for _ in range(steps):
        if machine.running < 6 and chance.random() < 0.3:
            sampling = Sampling(seed=next_id, repeat_penalty=1.1) if next_id % 3 else Sampling(temperature=0)
            machine.add(
                spec(next_id, prompt(chance.randint(1, 40), next_id), new=chance.randint(1, 40), sampling=sampling)
            )
            next_id += 1
        if chance.random() < 0.02:
            machine.cancel(chance.randint(max(next_id - 6, 0), next_id))
        replies.take(machine.step())
    while machine.has_work:
        machine.step()
    mx.clear_cache()


@pytest.mark.parametrize("architecture", ["llama", "qwen3_next"])
def test_no_growth(architecture: str) -> None:
    grows_not(architecture, 250)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("architecture", ["llama", "qwen3_next"])
def test_no_growth_over_5000_steps(architecture: str) -> None:
    grows_not(architecture, 5000)


def grows_not(architecture: str, steps: int) -> None:
    machine, chance = engine(architecture, endless=True), random.Random(1)
    churn(machine, 60, chance)
    arrays, memory = live_arrays(), mx.get_active_memory()
    churn(machine, steps, chance)
    assert live_arrays() <= arrays + 5
    assert mx.get_active_memory() <= memory + 200_000


def test_a_long_reply_of_a_recurrent_model_builds_no_chain_of_unevaluated_work() -> None:
    """mlx-lm's padding counters, unread, keep every step's graph alive: memory would grow with each token."""
    machine = engine("qwen3_next", endless=True)
    for at in range(3):
        machine.add(spec(at, prompt(10 + at, at), new=300))
    seen: list[Any] = []
    while machine.has_work:
        machine.step()
        if machine.steps in {60, 280}:
            seen.append(live_arrays())
    assert abs(seen[1] - seen[0]) <= 4
