"""Stop strings: found where they begin first, however the text is cut, and soon, however many there are."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from omlx.engine.detokenize import StopStrings

_FEW_LETTERS = st.text("ab", max_size=6)


def told(stops: list[str], chunks: list[str]) -> tuple[str, str]:
    """The text that was let go, and the stop string that was found."""
    looking = StopStrings(stops)
    text = ""
    for chunk in chunks:
        free, stop = looking.feed(chunk)
        text += free
        if stop:
            return text, stop
        assert not any(stop and stop in text for stop in stops)
    return text + looking.flush(), ""


@given(st.lists(_FEW_LETTERS, max_size=6), st.text("ab", max_size=30))
def test_letter_by_letter_the_first_that_is_complete_ends_the_text(stops: list[str], text: str) -> None:
    ends = next((end for end in range(len(text) + 1) if any(s and text[:end].endswith(s) for s in stops)), None)
    if ends is None:
        assert told(stops, list(text)) == (text, "")
    else:
        found = max((s for s in stops if s and text[:ends].endswith(s)), key=len)
        assert told(stops, list(text)) == (text[: ends - len(found)], found)


@given(st.lists(_FEW_LETTERS, max_size=6), st.lists(st.text("ab", max_size=5), max_size=8))
def test_in_pieces_the_one_that_begins_first_ends_the_text(stops: list[str], chunks: list[str]) -> None:
    seen = ""
    for chunk in chunks:
        seen += chunk
        hits = [(seen.index(stop), len(stop), stop) for stop in stops if stop and stop in seen]
        if hits:
            place, _, found = min(hits)
            assert told(stops, chunks) == (seen[:place], found)
            return
    assert told(stops, chunks) == (seen, "")


@given(st.lists(_FEW_LETTERS, max_size=6), st.text("ab", max_size=30))
def test_no_more_is_held_back_than_may_become_one(stops: list[str], text: str) -> None:
    looking = StopStrings(stops)
    free, found = looking.feed(text)
    if not found:
        held = [size for size in range(1, len(text) + 1) if any(stop.startswith(text[-size:]) for stop in stops)]
        assert text[len(free) :] == text[len(text) - max(held, default=0) :]


def test_many_stop_strings_cost_no_more_than_few() -> None:
    looking = StopStrings([f" word{number} and more" for number in range(100_000)])
    begun = time.thread_time()
    text = "".join(looking.feed(piece)[0] for piece in [" the", " word7", " and", " less"] * 250) + looking.flush()
    assert text == " the word7 and less" * 250
    assert time.thread_time() - begun < 0.5  # One look at each string takes ten times as long for a single token.
