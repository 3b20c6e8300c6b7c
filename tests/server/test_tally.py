"""How many values of each kind a body holds is known before it is decoded."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx.server import body_counts as module
from omlx.server.body_counts import MOST_ARRAYS, MOST_OBJECTS, MOST_TEXTS, MOST_VALUES, Tally, tally


def items(item: str, count: int) -> bytes:
    return f'{{"a":[{",".join([item] * count)}]}}'.encode()


@pytest.mark.parametrize(
    ("item", "most", "what"),
    [
        ("{}", MOST_OBJECTS, "objects"),
        ("[]", MOST_ARRAYS, "arrays"),
        ('""', MOST_TEXTS, "texts"),
        ("0", MOST_VALUES, "values"),
    ],
)
def test_each_kind_has_its_limit(item: str, most: int, what: str) -> None:
    assert tally(items(item, most - 1)).excess == ""
    assert tally(items(item, most + 2)).excess == f"{most:,} {what}"


@pytest.mark.parametrize("inside", ["{", "[", ",", '\\"', "\\\\", '\\\\\\"{', "{[,"])
def test_what_stands_inside_of_a_text_is_no_value(inside: str) -> None:
    body = f'{{"model":"m","prompt":"{inside * 3_000_000}"}}'.encode()
    assert tally(body).excess == ""
    assert len(json.loads(body)["prompt"]) >= 3_000_000


JSON = st.recursive(
    st.none() | st.integers() | st.text(alphabet='a"\\{[,é') | st.just("{"),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='b"\\}'), inner),
    max_leaves=30,
)


@given(JSON)
def test_counts_beyond_a_limit_are_exact(value: Any) -> None:
    def count(value: Any) -> Tally:
        if isinstance(value, str):
            return Tally(0, 1, 0, 0)
        inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
        found = Tally(*map(sum, zip(*map(count, inner), strict=True))) if inner else Tally(0, 0, 0, 0)
        commas = max(len(value) - 1, 0) if isinstance(value, dict | list) else 0
        return Tally(
            found.values + commas,
            found.texts,
            found.objects + isinstance(value, dict),
            found.arrays + isinstance(value, list),
        )

    before = module.MOST_OBJECTS
    module.MOST_OBJECTS = -1  # so that the exact count is made of every body
    try:
        assert tally(json.dumps(value).encode()) == count(value)
    finally:
        module.MOST_OBJECTS = before
