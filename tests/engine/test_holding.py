"""What work limits hold back waits and goes on later with the same reply; everybody else does not notice."""

from __future__ import annotations

from typing import Any

import pytest

from omlx.engine.engine import Engine
from omlx.engine.pacing import BACKGROUND, LOWER, NOBODY
from omlx.messages.constraint import Grammar
from omlx.messages.request import Limits, Sampling
from omlx.messages.work_limits import UNLIMITED, WorkLimits
from tests.engine.support import Replies, bare, engine, loaded, prompt, run, spec
from tests.engine.test_exactness import LENGTHS, NEW, SAMPLED
from tests.engine.test_speculative import with_draft


def held_now_and_then(machine: Engine, specs: list[Any]) -> Replies:
    """The lower classes take no part in steps 5 to 9, 15 to 19, and so on."""

    def change(step: int, replies: Replies) -> None:
        machine.holding.hold(LOWER if step // 5 % 2 else NOBODY)

    return run(machine, specs, every=3, after_step=change)


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text", "qwen3_next", "mamba2", "deepseek_v3"])
def test_a_reply_that_was_held_is_the_same(architecture: str) -> None:
    machine = engine(architecture, endless=True)
    classes = ["background", "interactive", "batch"] * 2
    specs = [spec(at, prompt(length, at), new=NEW[at], priority=classes[at]) for at, length in enumerate(LENGTHS)]
    replies = held_now_and_then(machine, specs)
    for at, length in enumerate(LENGTHS):
        assert replies.tokens[at] == bare(architecture, prompt(length, at), NEW[at]), f"{architecture}, request {at}"
    assert machine.max_batch >= 2


def test_a_sampled_reply_that_was_held_is_the_same() -> None:
    tokens = [prompt(20 + at, at) for at in range(len(SAMPLED))]
    alone = [
        run(engine(endless=True), [spec(0, tokens[at], sampling=sampling)]).tokens[0]
        for at, sampling in enumerate(SAMPLED)
    ]
    classes = ["background", "batch", "interactive"] * 3
    specs = [spec(at, tokens[at], sampling=sampling, priority=classes[at]) for at, sampling in enumerate(SAMPLED)]
    replies = held_now_and_then(engine(endless=True), specs)
    for at in range(len(SAMPLED)):
        assert replies.tokens[at] == alone[at], SAMPLED[at]


def test_grammars_and_log_probabilities_are_as_without() -> None:
    wild = Sampling(seed=5, temperature=1.5)
    grammar = Grammar(kind="regex", source="[a-f]{30}-[0-9]{20}")
    kinds: list[dict[str, Any]] = [{"grammar": grammar}, {"logprobs": True, "top_logprobs": 2}, {}]

    def specs() -> list[Any]:
        return [
            spec(at, prompt(12, at), new=60, sampling=wild, priority="background", **kind)
            for at, kind in enumerate(kinds)
        ] + [spec(9, prompt(30), new=80)]

    plain = run(engine(), specs(), every=3)
    held = held_now_and_then(engine(), specs())
    assert held.text == plain.text and held.tokens == plain.tokens
    for at, output in plain.ends.items():
        assert (held.ends[at].finish, held.ends[at].failure) == (output.finish, None)
    ours, theirs = (
        [one.logprob for output in replies.outputs if output.id == 1 for one in output.logprobs]
        for replies in (held, plain)
    )
    assert len(ours) > 20 and ours == pytest.approx(theirs, abs=1e-3)


def steps(machine: Engine, count: int) -> Replies:
    replies = Replies()
    for _ in range(count):
        replies.take(machine.step())
    return replies


def test_a_held_class_does_nothing_at_all() -> None:
    machine = engine(endless=True)
    machine.add(spec(1, prompt(20), new=500, priority="background"))
    machine.add(spec(2, prompt(20, 2), new=500))
    assert set(steps(machine, 10).tokens) == {1, 2}
    machine.holding.hold(BACKGROUND)
    machine.add(spec(3, prompt(600, 3), new=500, priority="background"))  # neither prefilled nor admitted
    steps(machine, 2)
    read = machine.tokens_read
    found = steps(machine, 20)
    assert set(found.tokens) == {2} and len(found.tokens[2]) == 20
    assert (machine.tokens_read, machine.waiting, machine.running) == (read, 1, 2)
    machine.holding.hold(NOBODY)
    assert set(steps(machine, 20).tokens) == {1, 2, 3}


def test_a_held_prompt_is_not_prefilled_further() -> None:
    machine = engine(endless=True)
    machine.add(spec(2, prompt(20, 2), new=900))
    steps(machine, 3)
    machine.add(spec(1, prompt(1500), new=5, priority="batch"))
    while machine.tokens_read < 200:
        machine.step()
    machine.holding.hold(LOWER)
    steps(machine, 2)
    read = machine.tokens_read
    assert read < 1500
    steps(machine, 20)
    assert machine.tokens_read == read
    machine.holding.hold(NOBODY)
    while machine.tokens_read < 1500:
        machine.step()


@pytest.mark.parametrize("how", ["cancel", "end"])
def test_a_held_reply_can_be_ended(how: str) -> None:
    machine = engine(endless=True)
    machine.add(spec(1, prompt(20), new=500, priority="batch"))
    steps(machine, 5)
    machine.holding.hold(LOWER)
    steps(machine, 3)
    assert machine.has_work and machine.running == 1
    getattr(machine, how)(1)
    found = steps(machine, 2)
    assert [one.finish for one in found.ends.values()] == ([] if how == "cancel" else ["stop"])
    assert not machine.has_work and machine.running == 0
    machine.holding.hold(NOBODY)
    assert run(machine, [spec(2, prompt(20), new=5)]).tokens[2] == bare("llama", prompt(20), 5)


def test_lower_classes_get_so_many_places() -> None:
    machine = engine(endless=True)
    machine.holding.limit(WorkLimits(places=2))
    for at in range(5):
        machine.add(spec(at, prompt(20, at), new=10, priority="batch" if at % 2 else "background"))
    for at in range(5, 8):
        machine.add(spec(at, prompt(20, at), new=30))
    steps(machine, 4)
    assert (machine.running, machine.waiting) == (5, 3)
    replies = run(machine, [])
    assert set(replies.ends) == set(range(8))
    machine.holding.limit(UNLIMITED)


def test_limits_switch_guesses_off_and_on() -> None:
    machine, _ = with_draft(loaded("llama", endless=True), loaded("llama", endless=True))
    machine.add(spec(1, prompt(30), new=400, limits=Limits(num_predict=400)))
    steps(machine, 20)
    assert machine.guesses is not None and machine.guesses[0] > 0
    machine.holding.limit(WorkLimits(speculation=False))
    steps(machine, 1)
    before = machine.guesses
    found = steps(machine, 20)
    assert machine.guesses == before and len(found.tokens[1]) == 20, "one token a step"
    machine.holding.limit(UNLIMITED)
    replies = run(machine, [])
    assert machine.guesses[0] > before[0] and 1 in replies.ends


def test_a_reply_with_guesses_can_be_held() -> None:
    machine, _ = with_draft(loaded("llama", endless=True), loaded("llama", endless=True))
    machine.add(spec(1, prompt(30), new=60, priority="batch"))
    replies = Replies()
    for at in range(200):
        if at == 10:
            machine.add(spec(2, prompt(20), new=20))
        machine.holding.hold(LOWER if 10 <= at < 25 else NOBODY)
        replies.take(machine.step())
        if not machine.has_work:
            break
    assert replies.tokens[1] == bare("llama", prompt(30), 60)
    assert replies.tokens[2] == bare("llama", prompt(20), 20)
