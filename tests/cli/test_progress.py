"""Progress looks like Ollama's on a terminal and is a few plain lines in a log."""

from __future__ import annotations

import pytest

from omlx.cli.progress import Bar, Display, bar_line, plain_bar_line
from omlx.cli.tables import text_width

LABEL = "pulling 6a0746a1ec1a:"


def test_a_bar_shows_share_amounts_rate_and_time_left() -> None:
    line = bar_line(LABEL, 2_100_000_000, 4_700_000_000, 85_000_000, 80)
    assert line == "pulling 6a0746a1ec1a:  45% ▕████████          ▏ 2.1 GB/4.7 GB   85 MB/s     30s"


def test_a_full_bar_shows_the_total_alone() -> None:
    line = bar_line(LABEL, 4_700_000_000, 4_700_000_000, 0, 80)
    assert line.rstrip() == "pulling 6a0746a1ec1a: 100% ▕██████████████████▏ 4.7 GB"


@pytest.mark.parametrize("width", [10, 40, 80, 200])
@pytest.mark.parametrize("completed", [0, 1, 500, 1000, 2000])
def test_a_bar_never_wraps(width: int, completed: int) -> None:
    assert text_width(bar_line("pulling x:", completed, 1000, 3, width)) <= max(width, len("pulling x: 100%"))


def test_a_plain_line_has_the_numbers_without_a_bar() -> None:
    assert plain_bar_line(LABEL, 2_100_000_000, 4_700_000_000, 85_000_000) == (
        "pulling 6a0746a1ec1a:  45% 2.1 GB/4.7 GB   85 MB/s     30s"
    )


def test_the_rate_is_that_of_the_last_seconds() -> None:
    bar = Bar(LABEL, 10_000, 0, 0.0)
    for second in range(1, 101):
        bar.update(second * (1 if second < 50 else 100), float(second))
    assert bar.rate() == pytest.approx(100, rel=0.01)


def test_in_a_log_each_step_and_each_finished_bar_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with Display() as display:
        display.step("pulling manifest")
        for done in range(1, 1001):
            display.bytes("sha256:a", "pulling a:", done * 1000, 1_000_000)
        for _ in range(3):
            display.bytes("sha256:a", "pulling a:", 1_000_000, 1_000_000)
        display.step("success")
    seen = capsys.readouterr()
    assert seen.out == ""
    lines = [line.rstrip() for line in seen.err.splitlines()]
    assert lines == ["pulling manifest", "pulling a: 100%   1 MB", "success"]
