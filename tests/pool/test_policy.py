"""The pool's decisions, by tables."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx.pool.policy import (
    Evict,
    Fits,
    LoadLimits,
    Never,
    Resident,
    Wait,
    expires_in,
    idle_victims,
    is_stalled,
    keep_alive_of,
    make_room,
    restart_delay,
    why_unloaded,
)

ROOM = LoadLimits(places=3, budget=100)


def model(digest: str, memory: int = 10, **changes: object) -> Resident:
    return Resident(digest=digest, memory=memory, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("residents", "order"),
    [
        # the shortest keep-alive first, whenever it was used
        ([model("a", keep_alive=300, used_at=1), model("b", keep_alive=60, used_at=9)], ["b", "a"]),
        # among equals the least recently used
        ([model("a", used_at=5), model("b", used_at=3), model("c", used_at=4)], ["b", "c", "a"]),
        # forever last, but still evictable
        ([model("a", keep_alive=math.inf, used_at=0), model("b", keep_alive=1e9, used_at=9)], ["b", "a"]),
        # never: busy, pinned, loading, leaving
        (
            [model("a", busy=True), model("b", pinned=True), model("c", state="loading"), model("d", state="leaving")],
            [],
        ),
    ],
)
def test_victims_go_in_this_order(residents: list[Resident], order: list[str]) -> None:
    assert [resident.digest for resident in idle_victims(residents)] == order


@pytest.mark.parametrize(
    ("residents", "need", "plan"),
    [
        ([], 10, Fits()),
        ([], 1000, Fits()),  # cut to the budget: whether it can run at all is decided elsewhere
        ([model("a"), model("b")], 10, Fits()),
        ([model("a"), model("b"), model("c", used_at=-1)], 10, Evict(("c",))),
        ([model("a", 60, used_at=2), model("b", 30, used_at=1)], 20, Evict(("b",))),
        ([model("a", 60, used_at=1), model("b", 30, used_at=2)], 90, Evict(("a", "b"))),
        # what leaves anyway is waited for, nobody else is evicted
        ([model("a", 60, state="leaving"), model("b", 30)], 50, Wait(None)),
        # busy ones are waited for, the shortest keep-alive first; they are never ended
        ([model("a", 50, busy=True), model("b", 50, busy=True, keep_alive=5)], 10, Wait("b")),
        ([model("a", 90, busy=True), model("b", 10)], 20, Wait("a")),
        ([model("a", 90, state="loading", busy=True)], 20, Wait("a")),
        # pinned ones stay for good
        ([model(name, pinned=True) for name in "abc"], 10, Never()),
        ([model("a", 90, pinned=True, busy=True)], 20, Never()),
        ([model("a", 50, pinned=True), model("b", 50, busy=True)], 20, Wait("b")),
    ],
)
def test_room_is_made_with_the_least_harm(residents: list[Resident], need: int, plan: object) -> None:
    assert make_room(residents, need, ROOM) == plan


@pytest.mark.parametrize(
    ("residents", "need", "places", "why"),
    [
        ([model("a", 60), model("b", 30)], 20, 3, "m needs the memory"),
        ([model("a", 60), model("b", 30)], 20, 2, "m needs the memory"),  # both are short: more places would not help
        ([model("a")], 1000, 3, "m needs the memory"),
        (
            [model(name) for name in "abc"], 10, 3,
            "m needs the place, at most 3 models can be loaded at once (setting max_loaded_models)",
        ),
        ([model("a")], 10, 1, "m needs the place, at most 1 model can be loaded at once (setting max_loaded_models)"),
    ],
)  # fmt: skip
def test_the_log_says_what_a_model_was_unloaded_for(
    residents: list[Resident], need: int, places: int, why: str
) -> None:
    assert why_unloaded("m", residents, need, LoadLimits(places=places, budget=100)) == why


residents = st.lists(
    st.builds(
        Resident,
        digest=st.uuids().map(str),
        state=st.sampled_from(["ready", "ready", "loading", "leaving"]),
        busy=st.booleans(),
        pinned=st.booleans(),
        keep_alive=st.floats(0, 1e6) | st.just(math.inf),
        used_at=st.floats(0, 100),
        memory=st.integers(0, 60),
    ),
    max_size=6,
    unique_by=lambda resident: resident.digest,
)


@given(residents, st.integers(0, 150))
def test_only_idle_unpinned_models_are_evicted_and_then_it_fits(those: list[Resident], need: int) -> None:
    plan = make_room(those, need, ROOM)
    if isinstance(plan, Evict):
        gone = [resident for resident in those if resident.digest in plan.digests]
        assert all(r.state == "ready" and not r.busy and not r.pinned for r in gone)
        left = [r for r in those if r.digest not in plan.digests and r.state != "leaving"]
        assert make_room(left, need, ROOM) == Fits()
    if isinstance(plan, Wait) and plan.drain is not None:
        (target,) = [resident for resident in those if resident.digest == plan.drain]
        assert not target.pinned


@pytest.mark.parametrize(
    ("requested", "current", "expected"),
    [(None, None, 300), (None, 60, 60), (5, 60, 5), (0, 60, 0), (None, 0, 0), (math.inf, 60, math.inf)],
)
def test_a_requests_keep_alive_replaces_the_models(
    requested: float | None, current: float | None, expected: float
) -> None:
    assert keep_alive_of(requested, current, 300) == expected


def test_pinned_and_forever_models_do_not_expire() -> None:
    assert expires_in(keep_alive=5, pinned=False) == 5
    assert expires_in(keep_alive=0, pinned=False) == 0
    assert expires_in(keep_alive=math.inf, pinned=False) is None
    assert expires_in(keep_alive=0, pinned=True) is None


def test_a_model_that_keeps_crashing_is_reloaded_ever_more_slowly() -> None:
    assert [restart_delay(crashes) for crashes in range(9)] == [0, 0, 1, 2, 4, 8, 16, 30, 30]


def test_a_stall_is_time_without_progress_beyond_the_limit() -> None:
    assert is_stalled(10.1, 10)
    assert not is_stalled(9.9, 10)
    assert not is_stalled(1e9, math.inf)
