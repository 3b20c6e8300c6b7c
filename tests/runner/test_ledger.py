"""Requests never get more KV memory than there is, wait their turn for it, and hear at once when they never can."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx.messages.request import Limits
from omlx.runner.ledger import USUAL_ANSWER, Ledger, expected_tokens


@pytest.mark.parametrize(
    ("prompt", "context", "num_predict", "expected"),
    [(100, 4096, 50, 150), (100, 4096, -1, 100 + USUAL_ANSWER), (4000, 4096, -1, 4096), (100, 4096, 10**6, 4096)],
)
def test_what_is_reserved_is_what_is_likely(prompt: int, context: int, num_predict: int, expected: int) -> None:
    assert expected_tokens(prompt, context, Limits(num_predict=num_predict)) == expected


def test_without_a_budget_everything_fits() -> None:
    ledger = Ledger(0, 1000)
    assert ledger.can_ever_hold(10**9)
    assert ledger.reserve(1, 10**9)


def test_what_does_not_fit_now_fits_later() -> None:
    ledger = Ledger(1000, 10)
    assert ledger.reserve(1, 60)
    assert not ledger.reserve(2, 60)
    ledger.release(1)
    assert ledger.reserve(2, 60)
    assert not ledger.can_ever_hold(101)


@given(st.lists(st.integers(1, 300), max_size=30), st.integers(1, 5000))
def test_promises_never_exceed_the_budget_and_an_empty_ledger_takes_anyone(sizes: list[int], budget: int) -> None:
    ledger = Ledger(budget, 10)
    assert ledger.most_tokens is not None
    for number, size in enumerate(sizes):
        assert ledger.reserve(number, size) or ledger.reserved > 0
        assert ledger.reserved <= ledger.most_tokens
    for number in range(len(sizes)):
        ledger.release(number)
    assert ledger.reserved == 0


def test_a_smaller_budget_keeps_what_is_promised_and_makes_new_requests_wait() -> None:
    ledger = Ledger(1000, 10)
    assert ledger.reserve(1, 80)
    ledger.resize(600)
    assert ledger.reserved_bytes == 800
    assert not ledger.reserve(2, 10)
    assert not ledger.can_ever_hold(61)
    ledger.release(1)
    assert ledger.reserve(2, 60)
    ledger.resize(0)
    assert ledger.can_ever_hold(10**9)
