"""The share that limits give to each class is what it gets, and first tokens wait for nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from omlx.engine.pacing import BACKGROUND, LOWER, NOBODY, Pacer, Presence, Turn, presence
from omlx.engine.prefill_budget import PrefillBudget
from omlx.engine.scheduler import Candidate, FairShare, PrefillState, plan
from omlx.messages.work_limits import WorkLimits

BATCH = Presence(batch=True)
BOTH = Presence(interactive=True, background=True)
FIRST = Presence(interactive=True, background=True, urgent=True)


def paced(**limits: Any) -> Pacer:
    pacer = Pacer()
    pacer.limits = WorkLimits(**limits)
    return pacer


@pytest.mark.parametrize(
    ("limits", "here", "expected"),
    [
        ({}, BATCH, Turn()),
        ({"share": 0.25}, BATCH, Turn()),
        ({"background": False}, Presence(background=True), Turn(BACKGROUND, idle=True)),
        ({"background": False}, Presence(batch=True, background=True), Turn(BACKGROUND)),
        ({"background": False}, BOTH, Turn(BACKGROUND)),
        ({"background": False}, BOTH._replace(blocked=True), Turn(NOBODY)),
        ({"background": False}, Presence(), Turn(BACKGROUND)),
    ],
)
def test_before_anything_was_done(limits: dict[str, Any], here: Presence, expected: Turn) -> None:
    assert paced(**limits).turn(100.0, here) == expected


class Simulated:
    """A runner whose steps take `step_s`: how long it worked, with lower classes and in all."""

    def __init__(self, pacer: Pacer, step_s: float = 0.04) -> None:
        self.pacer, self.step_s, self.now = pacer, step_s, 1000.0
        self.worked = self.lower = 0.0
        self.switches = 0
        self._held = NOBODY

    def run(self, seconds: float, here: Presence) -> None:
        end = self.now + seconds
        while self.now < end:
            turn = self.pacer.turn(self.now, here)
            self.switches += turn.held != self._held
            self._held = turn.held
            if turn.rest_s:
                self.now += turn.rest_s
                continue
            began, self.now = self.now, self.now + self.step_s
            self.worked += self.step_s
            if (here.background and "background" not in turn.held) or (here.batch and "batch" not in turn.held):
                self.lower += self.step_s
            self.pacer.worked(began, self.now, here, turn)


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("step_s", [0.004, 0.04, 0.5])
def test_lower_classes_get_their_share_of_the_time(share: float, step_s: float) -> None:
    alone = Simulated(paced(share=share), step_s)
    alone.run(60, BATCH)
    assert alone.worked / 60 == pytest.approx(share, rel=0.1)
    beside = Simulated(paced(share=share), step_s)
    beside.run(60, BOTH)
    assert beside.worked == pytest.approx(60, rel=0.02), "interactive replies go on"
    # Beside others they take whole steps, or none: long ones make it less.
    assert share / 2 <= beside.lower / 60 <= 1.2 * share
    assert beside.switches <= 2 * 60 / 0.25


def test_a_pace_slows_everybody_and_lower_classes_most() -> None:
    alone = Simulated(paced(pace=0.5))
    alone.run(60, Presence(interactive=True))
    assert alone.worked / 60 == pytest.approx(0.5, rel=0.05)
    both = Simulated(paced(pace=0.5, share=0.5))
    both.run(60, BOTH)
    assert both.worked / 60 == pytest.approx(0.5, rel=0.05)
    assert both.lower / 60 == pytest.approx(0.25, rel=0.25)


def test_a_first_token_waits_for_nothing() -> None:
    simulated = Simulated(paced(pace=0.1, share=0.1))
    simulated.run(10, BATCH)
    pacer, now = simulated.pacer, simulated.now
    assert pacer.turn(now - 0.3, BATCH).rest_s > 0
    first = pacer.turn(now - 0.3, Presence(interactive=True, batch=True, urgent=True))
    assert (first.rest_s, first.held) == (0.0, LOWER)
    for _ in range(20):
        pacer.worked(now, now + 0.04, FIRST, first)
        now += 0.04
        assert pacer.turn(now, FIRST).rest_s == 0


def test_no_time_is_saved_up_while_nothing_is_there() -> None:
    simulated = Simulated(paced(share=0.25))
    simulated.now += 3600
    simulated.run(2.0, BATCH)
    assert simulated.worked <= 0.6


def test_a_step_that_stood_still_is_not_paid_for_long() -> None:
    pacer = paced(share=0.1)
    pacer.worked(1000.0, 5000.0, BATCH, Turn())
    assert pacer.turn(5000.0, BATCH).rest_s == 0
    pacer.worked(5000.0, 5010.0, BATCH, Turn())
    assert pacer.turn(5010.0, BATCH).rest_s <= 10


def sequence(priority: str, generated: int) -> Any:
    return SimpleNamespace(spec=SimpleNamespace(priority=priority), generated=generated)


def test_who_is_there() -> None:
    assert presence([], blocked=False) == Presence()
    assert presence([sequence("batch", 0)], blocked=False) == BATCH
    assert presence([sequence("interactive", 3), sequence("background", 0)], blocked=False) == BOTH
    assert presence([sequence("interactive", 3), sequence("interactive", 0)], blocked=True) == Presence(
        interactive=True, urgent=True, blocked=True
    )


def planned(*candidates: Candidate, **limits: Any) -> list[int]:
    budget = PrefillBudget(step_s=0.004, fixed_s=0.004, token_s=1e-5, largest=2048, max_gap_s=0.1)
    state = PrefillState(candidates, True, 0, FairShare(), None)._replace(**limits)
    return [forward.id for forward in plan(state, budget).forwards]


def test_the_plan_of_a_step_obeys() -> None:
    batch, interactive = Candidate(1, 200, 0, "batch"), Candidate(2, 200, 0)
    assert set(planned(batch, interactive)) == {1, 2}
    assert set(planned(batch, interactive, held=LOWER)) == {2}
    assert set(planned(batch, interactive, lower_part=0.5)) == {2}
    assert planned(batch, held=LOWER) == []
    many = [Candidate(at, 2000, 0, "batch") for at in range(8)]
    assert 0 < len(planned(*many, lower_part=0.25)) < len(planned(*many))
    ours = [Candidate(at, 2000, 0) for at in range(8)]
    assert planned(*ours, lower_part=0.25) == planned(*ours)
