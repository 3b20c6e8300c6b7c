"""Requests come and go in every phase, and what happens to one is no business of the others."""

from __future__ import annotations

import re
from typing import Any

import mlx.core as mx
import pytest

from omlx.engine.engine import Engine
from omlx.engine.sequence import EngineError
from omlx.messages.constraint import Grammar
from omlx.messages.load_spec import EngineConfig
from omlx.messages.request import Limits
from tests.engine.support import Replies, bare, engine, loaded, prompt, run, spec


def test_cancel_in_each_phase_leaves_the_others_unchanged() -> None:
    machine = engine(endless=True, max_concurrent_requests=4)
    for at in range(3):
        machine.add(spec(at, prompt(30 + at, at), new=60))
    machine.add(spec(10, prompt(4000, 10), new=60))
    machine.add(spec(11, prompt(10, 11), new=60))
    replies = Replies()
    while not replies.tokens.get(0):
        replies.take(machine.step())
    assert machine.waiting == 1
    machine.cancel(11)  # still waiting
    machine.cancel(10)  # its long prompt is being read
    machine.cancel(1)  # decoding
    replies.take(machine.step())
    assert (machine.waiting, machine.running) == (0, 2)
    while machine.has_work:
        replies.take(machine.step())
    assert set(replies.ends) == {0, 2}
    for at in (0, 2):
        assert replies.tokens[at] == bare("llama", prompt(30 + at, at), 60)


def test_nothing_is_said_about_a_cancelled_request_and_its_place_is_free_at_the_next_step() -> None:
    machine = engine(endless=True, max_concurrent_requests=1)
    machine.add(spec(0, prompt(10), new=500))
    machine.add(spec(1, prompt(10), new=3))
    for _ in range(5):
        machine.step()
    machine.cancel(0)
    machine.cancel(99)  # nobody
    replies = run(machine, [])
    assert set(replies.tokens) == {1}
    assert not machine.has_work


def test_a_reply_that_is_ended_in_any_phase_has_its_last_word_and_leaves_the_others_unchanged() -> None:
    machine = engine(endless=True, max_concurrent_requests=3)
    for at in range(2):
        machine.add(spec(at, prompt(30 + at, at), new=40))
    machine.add(spec(10, prompt(4000, 10), new=60))
    machine.add(spec(11, prompt(10, 11), new=60))
    replies = Replies()
    while len(replies.tokens.get(1, [])) < 5:
        replies.take(machine.step())
    before = len(replies.tokens[1])
    for id in (11, 10, 1, 1, 99):  # waiting, its prompt being read, decoding, again, nobody
        machine.end(id)
    replies.take(machine.step())
    for id, count in ((1, before), (10, 0), (11, 0)):
        usage = replies.ends[id].usage
        assert usage is not None
        assert (replies.ends[id].finish, usage.completion_tokens) == ("stop", count)
    replies.take(run(machine, []).outputs)
    assert replies.tokens[1] == bare("llama", prompt(31, 1), 40)[:before]
    assert replies.tokens[0] == bare("llama", prompt(30), 40)


def test_more_requests_than_places_wait_and_are_all_answered() -> None:
    machine = engine(endless=True, max_concurrent_requests=3)
    replies = run(machine, [spec(at, prompt(12, at), new=6) for at in range(10)])
    assert set(replies.ends) == set(range(10))
    assert machine.max_batch == 3


@pytest.mark.parametrize("constrained", [False, True], ids=["free", "beside a constrained row"])
def test_trouble_in_one_rows_host_work_ends_that_row_alone(constrained: bool) -> None:
    machine = engine(endless=True)
    for at in range(3):
        machine.add(spec(at, prompt(20, at), new=15))
    if constrained:
        machine.add(spec(3, prompt(20, 3), new=15, grammar=Grammar(kind="regex", source="[a-z ]{40}")))

    class Broken:
        def feed(self, token: int) -> Any:
            raise RuntimeError("cannot be decoded")

    machine._known[1].text = Broken()  # type: ignore[assignment]
    replies = run(machine, [])
    assert replies.ends[1].failure is not None
    for at in (0, 2):
        assert replies.tokens[at] == bare("llama", prompt(20, at), 15)
    if constrained:
        assert re.fullmatch("[a-z ]{40}", replies.text[3])


class Fragile:
    """A model that raises when it is told to."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.layers = model.layers
        self.broken = False

    def __call__(self, tokens: mx.array, cache: Any) -> mx.array:
        if self.broken:
            raise RuntimeError("the device is out of memory")
        return self.model(tokens, cache=cache)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_failing_forward_ends_its_requests_and_the_engine_goes_on(phase: str) -> None:
    import msgspec

    fragile = Fragile(loaded("llama").model)
    model = msgspec.structs.replace(loaded("llama", endless=True), model=fragile)
    machine = Engine(model, EngineConfig(context_length=4096))
    machine.add(spec(0, prompt(20), new=10))
    replies = Replies()
    for _ in range(0 if phase == "prefill" else 4):
        replies.take(machine.step())
    fragile.broken = True
    replies.take(machine.step())
    fragile.broken = False
    failure = replies.ends[0].failure
    assert failure is not None and "there was not enough memory" in failure[1]
    assert not machine.has_work
    assert run(machine, [spec(1, prompt(20), new=10)]).tokens[1] == bare("llama", prompt(20), 10)


def test_what_can_never_run_is_refused_and_leaves_no_trace() -> None:
    machine = engine()
    bad = [
        spec(0, []),
        spec(0, [5, 10_000]),
        spec(0, prompt(50), limits=Limits(num_ctx=20)),
    ]
    kinds = []
    for request in bad:
        with pytest.raises(EngineError) as refused:
            machine.add(request)
        kinds.append(refused.value.kind)
    assert kinds == ["invalid", "invalid", "too_long"]
    assert not machine.has_work


def test_a_request_reports_its_counts_and_durations() -> None:
    replies = run(engine(endless=True), [spec(0, prompt(400), new=7)])
    usage = replies.ends[0].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (400, 0, 7)
    assert min(usage.queue_ns, usage.prompt_ns, usage.generation_ns) > 0
    progress = [output.progress for output in replies.outputs if output.progress]
    assert progress[-1] == (400, 400)


def test_short_prompts_are_not_stuck_behind_long_ones() -> None:
    machine = engine(endless=True, max_concurrent_requests=8)
    machine.add(spec(0, prompt(4000), new=2))  # longer than the first chunk of any device
    machine.step()
    machine.add(spec(1, prompt(30), new=2))
    replies = run(machine, [])
    assert list(replies.ends) == [1, 0]


def test_running_sequences_go_on_while_a_long_prompt_is_read() -> None:
    machine = engine(endless=True, max_decode_gap=0.02)
    machine.add(spec(0, prompt(10), new=4000))
    for _ in range(3):
        machine.step()
    machine.add(spec(1, prompt(1500), new=1))
    while_reading = sum(
        len(output.tokens) for _ in range(2000) if 1 in machine._known for output in machine.step() if output.id == 0
    )
    assert while_reading >= 10
    machine.cancel(0)
    run(machine, [])
    assert not machine._known
