"""Word wrap moves whole words, loses nothing, and never writes beyond the margin."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from omlx.cli.tables import text_width
from omlx.cli.wordwrap import MARGIN, WordWrap


def screen(output: str) -> list[str]:
    """What a terminal shows after `output`: it knows "\\n", cursor-back and erase-to-end-of-line."""
    lines, column = [""], 0
    rest = output
    while rest:
        if rest.startswith("\x1b["):
            end = next(i for i in range(2, len(rest)) if rest[i].isalpha())
            if rest[end] == "D":
                column -= int(rest[2:end])
            else:
                lines[-1] = lines[-1][:column]
            rest = rest[end + 1 :]
            continue
        if rest[0] == "\n":
            lines.append("")
            column = 0
        else:
            lines[-1] = lines[-1][:column] + rest[0] + lines[-1][column + 1 :]
            column += 1
        rest = rest[1:]
    return lines


def wrapped(pieces: list[str], width: int) -> list[str]:
    wrap = WordWrap(lambda: width)
    return screen("".join(wrap.feed(piece) for piece in pieces))


def test_a_word_that_does_not_fit_moves_to_the_next_line() -> None:
    pieces = ["The quick bro", "wn fox jum", "ps."]
    assert wrapped(pieces, 19) == ["The quick ", "brown fox ", "jumps."]


def test_a_word_longer_than_the_line_is_cut() -> None:
    assert wrapped(["x" * 20], 15) == ["x" * 10, "x" * 10]


def test_a_window_too_narrow_is_left_alone() -> None:
    assert WordWrap(lambda: 9).feed("a b c d e f g h i j k") == "a b c d e f g h i j k"


@given(st.lists(st.text(st.sampled_from("abcdefg  \n"), max_size=30), max_size=8), st.integers(10, 40))
def test_nothing_is_lost_and_no_line_is_too_long(pieces: list[str], width: int) -> None:
    lines = wrapped(pieces, width)
    assert "".join(lines).replace(" ", "") == "".join(pieces).replace(" ", "").replace("\n", "")
    assert max(text_width(line) for line in lines) <= width - MARGIN


@given(st.lists(st.text("日本語ab ", max_size=20), max_size=5), st.integers(12, 40))
def test_wide_characters_count_twice(pieces: list[str], width: int) -> None:
    wrap = WordWrap(lambda: width)
    text = "".join(wrap.feed(piece) for piece in pieces)
    for line in text.split("\n"):
        assert text_width(line.split("\x1b")[0]) <= width - MARGIN
