"""What chunks of a prompt are believed to cost."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx.engine.encode import chunks
from omlx.engine.latency import CHUNKS, LatencyModel, PrefillChunks
from omlx.engine.prefill_budget import PrefillBudget


def test_the_largest_chunk_within_a_time() -> None:
    assert LatencyModel(0.012, 1e-5).within(0.094) == 2048
    assert LatencyModel(0.012, 2e-5).within(0.024) == 512
    assert LatencyModel(0.06, 5e-3).within(0.02) == CHUNKS[0]


def test_the_shortest_chunk_that_is_worth_its_time() -> None:
    assert LatencyModel(0.004, 2e-4).worthwhile_s(0.1) == pytest.approx(0.004 + 128 * 2e-4)
    assert LatencyModel(0.060, 3e-6).worthwhile_s(0.1) == pytest.approx(0.060 + 2048 * 3e-6)
    assert LatencyModel(0.060, 3e-6).worthwhile_s(0.01) == pytest.approx(0.060 + 16 * 3e-6)


def test_one_measurement_corrects_the_others_as_far_as_it_must() -> None:
    costs = LatencyModel(0.010, 1e-6)
    for _ in range(20):
        costs.learn(0.060, (256,))
    assert costs.of(256) == pytest.approx(0.060, rel=0.01)
    assert costs.of(2048) == pytest.approx(costs.of(256))  # more tokens take no less
    assert costs.of(16) == pytest.approx(0.010, rel=0.01)  # fewer need not take more
    for _ in range(20):
        costs.learn(0.030, (16,))
    assert costs.of(16) == pytest.approx(0.030, rel=0.01)


def test_a_size_that_was_too_dear_once_comes_down_with_the_smaller_ones() -> None:
    costs = LatencyModel(0.010, 1e-5)
    for _ in range(4):
        costs.learn(5.0, (2048,))  # it compiled
    assert costs.within(0.1) < 2048
    for _ in range(20):
        costs.learn(0.020, (costs.within(0.1),))
    assert costs.within(0.1) == 2048


def test_a_stall_changes_nothing_and_a_price_that_has_changed_is_learnt() -> None:
    costs = LatencyModel(0.010, 1e-5)
    before = costs.of(256)
    for _ in range(5):
        costs.learn(11.0, (256,))  # another request held the processor
        costs.learn(before, (256,))
    assert costs.of(256) == pytest.approx(before)
    costs.learn(10 * before, (256,))
    costs.learn(10 * before, (256,))
    assert costs.of(256) == pytest.approx(2 * before)


def test_a_stall_leaves_the_budget_of_the_next_chunk_as_it_was() -> None:
    now = 0.0
    pace = PrefillBudget(step_s=0.010, fixed_s=0.010, token_s=2e-4, largest=512, max_gap_s=0.1, clock=lambda: now)

    def step(seconds: float, read: PrefillChunks = PrefillChunks()) -> None:  # noqa: B008 (it is immutable)
        nonlocal now
        now += seconds
        pace.decoded(1)
        pace.read(read, decoding=True)

    for _ in range(5):
        step(0.010)
    before = pace.tokens(pace.seconds(decoding=True, eager=True)), pace.step_s
    step(0.010, PrefillChunks().plus(512, owing=False))
    step(11.0)
    for _ in range(5):
        step(0.010)
    step(24.0)
    step(0.010)
    assert (pace.tokens(pace.seconds(decoding=True, eager=True)), pace.step_s) == pytest.approx(before)


def test_encoders_do_not_learn_from_a_stall_either() -> None:
    pace = chunks.EncodeBudget(1e-4)
    pace.learn(2000, 0.2)
    pace.learn(1000, 11.0)
    assert pace.budget(0.25) == 2500
    pace.learn(1000, 1.0)
    pace.learn(1000, 1.0)
    assert pace.budget(0.25) < 500


@given(st.lists(st.tuples(st.floats(0, 10), st.lists(st.integers(1, 5000), min_size=1, max_size=4)), max_size=30))
def test_more_tokens_never_take_less_and_twice_as_many_at_most_twice(found: list[tuple[float, list[int]]]) -> None:
    costs = LatencyModel(0.01, 1e-5)
    for seconds, sizes in found:
        costs.learn(seconds, tuple(sizes))
    values = [costs.of(size) for size in CHUNKS]
    assert all(a <= b * (1 + 1e-9) and b <= 2 * a * (1 + 1e-9) for a, b in pairwise(values))


DEVICES: dict[str, tuple[Callable[[int], float], int]] = {
    "plans every shape of more than 128 tokens": (
        lambda tokens: 0.018 if tokens <= 128 else 0.055 + tokens * 3e-6,
        2048,
    ),
    "each token costs": (lambda tokens: 0.004 + tokens * 2e-4, 128),
    "each forward costs more than the gap": (lambda tokens: 0.150 + tokens * 1e-5, 1024),
}


@pytest.mark.parametrize("device", DEVICES)
def test_long_prompts_are_read_in_chunks_that_suit_the_device(device: str) -> None:
    """Decodes in 10 ms, prompts at the device's own price; calibrated on 512 tokens of a shape that was known."""
    cost, expected = DEVICES[device]
    now = queued = 0.0
    pace = PrefillBudget(step_s=0.010, fixed_s=0.010, token_s=5e-6, largest=512, max_gap_s=0.1, clock=lambda: now)
    sizes: list[int] = []
    for _ in range(1500):
        now += 0.010 + queued
        pace.decoded(1)
        seconds = pace.seconds(decoding=True, eager=False)
        read = PrefillChunks().plus(pace.tokens(seconds), owing=True) if seconds else PrefillChunks()
        queued = sum(map(cost, read.chunks))
        sizes += read.chunks
        pace.read(read, decoding=True)
    late = sizes[-40:]
    assert late.count(expected) > len(late) / 2


@pytest.mark.parametrize(
    ("step", "fixed", "token", "expected"),
    [
        (0.006, 0.012, 1e-5, 0.094),  # what the gap leaves
        (0.150, 0.020, 1e-5, 0.600),  # a device too slow for the gap reads as long as some steps take
        (0.010, 0.075, 4.5e-3, 0.294),  # or as much as is worth a chunk's fixed cost
    ],
)
def test_time_for_prompts_between_two_steps(step: float, fixed: float, token: float, expected: float) -> None:
    pace = PrefillBudget(step_s=step, fixed_s=fixed, token_s=token, largest=512, max_gap_s=0.1)
    assert pace.seconds(decoding=True, eager=True) == pytest.approx(expected)


def test_where_every_forward_is_slow_a_prompt_alone_is_read_in_large_chunks() -> None:
    """A busy machine takes 1.2 s for a forward of 16 tokens and hardly more for one of 512."""
    now = 0.0
    budget = PrefillBudget(step_s=0.010, fixed_s=0.010, token_s=2e-4, largest=128, max_gap_s=0.1, clock=lambda: now)
    read = 0
    for _ in range(20):
        tokens = budget.tokens(budget.seconds(decoding=False, eager=True))
        budget.read(PrefillChunks((tokens,)), decoding=False)
        now += 1.2 + tokens * 5e-4
        read += tokens
    assert tokens >= 512
    assert read > 5_000


def test_a_step_costs_what_steps_of_so_many_rows_took() -> None:
    """80 ms and 20 ms for each row, as on a CPU."""
    now = 0.0
    pace = PrefillBudget(step_s=0.1, fixed_s=0.1, token_s=5e-3, largest=64, max_gap_s=0.1, clock=lambda: now)
    for rows in [1, 4, 16] * 20:
        for _ in range(6):
            pace.decoded(rows)
            now += 0.080 + 0.020 * rows
        pace.idle()
    for rows in (1, 4, 16):
        pace.idle()
        pace.decoded(rows)
        assert pace.step_s == pytest.approx(0.080 + 0.020 * rows, rel=0.05)


def test_a_slow_device_reads_less_of_a_prompt_eagerly() -> None:
    assert PrefillBudget(step_s=0.010, fixed_s=0.010, token_s=1e-5, largest=512, max_gap_s=0.1).eager_tokens == 2048
    assert PrefillBudget(step_s=0.090, fixed_s=0.080, token_s=5e-3, largest=32, max_gap_s=0.1).eager_tokens == 66


def test_prompts_that_come_one_by_one_are_timed() -> None:
    """Nothing else runs: the prompt is read in 350 ms, some tokens follow in 90 ms each, and then there is a pause."""
    now = 0.0
    pace = PrefillBudget(step_s=0.090, fixed_s=0.090, token_s=2e-3, largest=64, max_gap_s=0.1, clock=lambda: now)
    for _ in range(20):
        pace.read(PrefillChunks((64,)), decoding=False)
        now += 0.350 + 0.090
        for _ in range(6):
            pace.decoded(1)
            now += 0.090
        pace.idle()
        now += 5
    assert pace.cost(PrefillChunks((64,))) == pytest.approx(0.350, rel=0.05)


def test_what_little_time_is_left_is_not_filled_with_a_small_chunk() -> None:
    pace = PrefillBudget(step_s=0.010, fixed_s=0.010, token_s=1e-5, largest=512, max_gap_s=0.1)
    assert pace.left(0.050, PrefillChunks()) == 0.050
    assert pace.left(0.050, PrefillChunks((1024,))) == pytest.approx(0.050 - 0.010 - 0.01024)
    assert pace.left(0.030, PrefillChunks((1024,))) == 0.0


def test_a_forward_over_several_prompts_may_have_more_tokens_than_a_chunk_of_one() -> None:
    fast = PrefillBudget(step_s=0.004, fixed_s=0.004, token_s=4e-6, largest=2048, max_gap_s=0.1)
    assert (fast.tokens(0.5), fast.forward_tokens(0.5)) == (2048, 8192)
    assert fast.forward_tokens(0.024) == pytest.approx(4000, rel=0.05)
    slow = PrefillBudget(step_s=0.060, fixed_s=0.060, token_s=4e-3, largest=512, max_gap_s=0.1)
    assert slow.forward_tokens(0.5) == slow.tokens(0.5) < 2048
    new = PrefillBudget(step_s=0.004, fixed_s=0.004, token_s=4e-6, largest=512, max_gap_s=0.1)
    assert new.forward_tokens(0.5) == 2048  # nothing larger has been measured
