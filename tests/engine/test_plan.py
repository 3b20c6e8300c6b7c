"""What a step does with prompts is one pure function: given who waits, what things cost and who decodes, a plan."""

from __future__ import annotations

import msgspec
import pytest

from omlx.engine.latency import PrefillChunks
from omlx.engine.prefill_budget import PrefillBudget
from omlx.engine.scheduler import Candidate, FairShare, PlannedForward, PrefillState, StepPlan, plan


def fast() -> PrefillBudget:
    """A GPU: 4 ms a step, 2,048 tokens in 25 ms."""
    return PrefillBudget(step_s=0.004, fixed_s=0.004, token_s=1e-5, largest=2048, max_gap_s=0.1)


def slow() -> PrefillBudget:
    """A CPU: 60 ms a step, 4 ms a token."""
    return PrefillBudget(step_s=0.060, fixed_s=0.060, token_s=4e-3, largest=512, max_gap_s=0.1)


def state(*candidates: Candidate, decoding: bool = False, together: bool = True, turn: int = 0) -> PrefillState:
    return PrefillState(candidates, decoding, turn, FairShare(), (lambda fresh: True) if together else None)


def burst(count: int, tokens: int = 200) -> list[Candidate]:
    return [Candidate(at, tokens, 0) for at in range(count)]


def ids(found: StepPlan) -> list[int]:
    return [forward.id for forward in found.forwards]


@pytest.mark.parametrize(
    ("candidates", "decoding", "expected"),
    [
        ([], False, []),
        # The first prompt of all: the step is over with it.
        ([Candidate(1, 200, 0), Candidate(2, 9_000, 0)], False, [1]),
        # Forty short ones share the first forward of up to 8,192 tokens; the step is over with those, too.
        (burst(64), False, [0]),
        # Beside decodes, what the gap has room for: one such forward, or a few small ones.
        (burst(64), True, [0]),
        ([Candidate(1, 4_000, 0), Candidate(2, 300, 0)], True, [1, 2, 1]),
        # A long prompt that has had its first tokens waits for the short ones.
        ([Candidate(1, 9_000, 2_048), Candidate(2, 50, 0)], False, [1, 2]),
        # One on its way from disk waits while there is anything else, and is computed where there is not.
        ([Candidate(1, 200, 0, ready=False), Candidate(2, 300, 0)], False, [2]),
        ([Candidate(1, 200, 0, ready=False)], False, [1]),
        ([Candidate(1, 200, 0, ready=False)], True, []),
        # The class that has paid least comes first.
        ([Candidate(1, 200, 0, "background"), Candidate(2, 200, 0)], False, [2]),
    ],
)
def test_who_is_prefilled(candidates: list[Candidate], decoding: bool, expected: list[int]) -> None:
    assert ids(plan(state(*candidates, decoding=decoding), fast())) == expected


def test_a_slow_device_gives_each_step_what_is_worth_a_forward() -> None:
    found = plan(state(*burst(16, 60), decoding=True), slow())
    assert len(found.forwards) == 1
    assert found.forwards[0].tokens <= 64


def test_one_prompt_at_a_time_where_the_model_or_several_ranks_want_it_so() -> None:
    found = plan(state(*burst(64), decoding=True, together=False), fast())
    assert ids(found)[:3] != [0] and len(found.forwards) > 5
    assert len(set(ids(found))) == len(found.forwards)


def test_the_last_token_of_a_prompt_goes_alone_in_the_same_step() -> None:
    found = plan(state(Candidate(1, 200, 0), together=False)._replace(logits_rows=1), fast())
    assert ids(found) == [1, 1]


def test_a_long_prompt_owes_decodes_their_share() -> None:
    budget = fast()
    long = state(Candidate(1, 30_000, 4_096), decoding=True)
    (first,) = plan(long, budget).forwards
    assert not first.eager
    budget.decoded(4)
    budget.read(PrefillChunks().plus(first.tokens, owing=True), decoding=True)
    assert plan(long, budget).forwards == ()
    with_short = state(Candidate(1, 30_000, 4_096), Candidate(2, 20, 0), decoding=True)
    assert ids(plan(with_short, budget)) == [2]


def test_a_plan_changes_nothing_and_is_the_same_again() -> None:
    share = FairShare()
    before = PrefillState(tuple(burst(20)), True, 3, share, lambda fresh: True)
    assert plan(before, fast()) == plan(before, fast())
    assert share.choose(["interactive", "background"]) == "interactive"


def test_a_plan_travels_to_other_ranks_as_it_is() -> None:
    found = StepPlan((PlannedForward(3, 512, 4096, True), PlannedForward(4, 512, 512, False)))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=StepPlan) == found
