"""Chunks: nothing is lost or done twice, padding is bounded, and everybody gets a turn."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from omlx.engine.encode.chunks import MOST_ROWS, MOST_TOKENS, EncodeBudget, PartBudget, choose, shortest

lengths = st.lists(st.integers(1, 9000), min_size=1, max_size=40).map(lambda rows: sorted(rows, reverse=True))


@given(st.lists(lengths, min_size=1, max_size=5), st.integers(1, MOST_TOKENS))
def test_chunks_do_every_row_once_within_the_budget(queues: list[list[int]], budget: int) -> None:
    left = [list(queue) for queue in queues]
    steps = 0
    while any(left):
        order = [number for number, queue in enumerate(left) if queue]
        width = left[order[0]][0]
        picks = choose([left[number] for number in order], budget)
        rows = [length for pick in picks for length in left[order[pick.queue]][pick.start : pick.stop]]
        assert rows and rows[0] == width  # the leader's longest row is in
        assert len(rows) == 1 or len(rows) * width <= budget
        assert len(rows) <= MOST_ROWS
        assert all(shortest(width) <= length <= width for length in rows)
        for pick in picks:
            del left[order[pick.queue]][pick.start : pick.stop]
        steps += 1
    assert steps <= sum(map(len, queues))


def test_short_rows_of_many_jobs_share_a_chunk() -> None:
    assert len(choose([[10], [9], [12, 8], [500, 7]], 1000)) == 4


def test_a_long_row_does_not_pad_short_ones() -> None:
    assert choose([[4000, 10], [12]], 16000) == [(0, 0, 1)]


def test_the_pace_follows_what_was_measured_within_bounds() -> None:
    pace = EncodeBudget(0.0005)
    for _ in range(20):
        pace.learn(1000, 2.0)
    assert 90 <= pace.budget(0.2) <= 110
    for _ in range(60):
        pace.learn(pace.budget(0.2), 1e-9)
    assert pace.budget(0.2) == MOST_TOKENS
    for _ in range(20):
        pace.learn(1, 60.0)
    assert pace.budget(0.2) == 32


def test_a_chunk_is_at_most_twice_as_large_as_any_before() -> None:
    """What a token takes is a guess at first: a chunk as large as it allows could take minutes."""
    pace, sizes = EncodeBudget(1e-9), []
    for _ in range(8):
        sizes.append(pace.budget(0.2))
        pace.learn(sizes[-1], 1e-6)
    assert sizes == [256, 512, 1024, 2048, 4096, 8192, MOST_TOKENS, MOST_TOKENS]


def test_parts_of_a_row_keep_their_time_though_each_costs_more_than_the_last() -> None:
    """Attention is over all that was read: short rows have been cheap, a million tokens of context are not."""
    budget, read, longest = PartBudget(MOST_TOKENS), 0, 0.0
    while read < 100_000:
        part = budget.tokens(0.25)
        seconds = part * (1e-6 + 1e-8 * (read + part / 2))
        budget.learn(part, seconds)
        read, longest = read + part, max(longest, seconds)
    assert longest < 0.6
    assert 0.2 < seconds < 0.3
