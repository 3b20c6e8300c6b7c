"""A power limit is held on plants of all kinds, without swinging, and work never stops."""

from __future__ import annotations

from collections import deque

import pytest

from omlx.power.controller import SLOWEST, next_pace


@pytest.mark.parametrize(
    ("pace", "watts", "limit", "expected"),
    [
        (1.0, 20, 30, 1.0),  # below the limit at full speed: nothing to do
        (1.0, 60, 30, 0.6),
        (0.5, 30, 30, 0.5),
        (0.5, 30.5, 30, 0.5),  # close enough
        (0.5, 15, 30, 0.6),
        (0.5, 0, 30, 0.625),  # no faster than by a quarter
        (0.06, 500, 30, SLOWEST),
        (SLOWEST, 40, 30, SLOWEST),
        (0.9, 0, 30, 1.0),
    ],
)
def test_a_step_of_the_controller(pace: float, watts: float, limit: float, expected: float) -> None:
    assert next_pace(pace, watts, limit) == pytest.approx(expected)


@pytest.mark.parametrize("lag", [0, 1, 2])
@pytest.mark.parametrize(
    ("idle", "more", "limit"),
    [(5, 40, 30), (20, 200, 100), (0, 1000, 50), (25, 10, 30), (10, 25, 30), (2, 6, 5)],
)
def test_a_machine_is_held_at_its_limit(idle: float, more: float, limit: float, lag: int) -> None:
    """`idle` watts without work and `more` with it; the measurement is so many seconds late."""
    pace, powers = 1.0, []
    measured = deque([idle + more] * (lag + 1), maxlen=lag + 1)
    for _ in range(120):
        power = idle + pace * more
        powers.append(power)
        measured.append(power)
        pace = next_pace(pace, measured[0], limit)
    settled = powers[60:]
    assert all(abs(power - limit) <= 0.05 * limit for power in settled), settled
    assert max(settled) - min(settled) <= 0.05 * limit, "it swings"
    within = next(second for second, power in enumerate(powers) if power <= 1.1 * limit)
    assert within <= 15


def test_a_limit_below_what_the_idle_machine_takes_leaves_some_work() -> None:
    pace = 1.0
    for _ in range(100):
        pace = next_pace(pace, 50 + pace * 100, 30)
    assert pace == SLOWEST


def test_full_speed_comes_back_when_the_work_gets_lighter() -> None:
    pace = 0.3
    for _ in range(40):
        pace = next_pace(pace, 5 + pace * 20, 30)
    assert pace == 1.0
