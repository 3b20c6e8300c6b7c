"""A setting that cannot mean anything stops the start, and the sentence names it."""

from __future__ import annotations

import pytest

from omlx.settings import SettingError, load


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("weights", "q"),
        ("cache_block_size", "7"),
        ("cache_block_size", "1025"),
        ("max_decode_gap", "-1"),
        ("max_decode_gap", "nan"),
        ("max_decode_gap", "inf"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(SettingError, match=f"{name} = '{value}' .*OMLX_{name.upper()}.* cannot be used"):
        load({}, {f"OMLX_{name.upper()}": value, "OMLX_CONFIG": "/dev/null"})


@pytest.mark.parametrize(
    ("name", "value"), [("weights", "float16"), ("cache_block_size", "0"), ("cache_block_size", "16")]
)
def test_the_edges_of_a_range_are_allowed(name: str, value: str) -> None:
    loaded = load({}, {f"OMLX_{name.upper()}": value, "OMLX_CONFIG": "/dev/null"})
    assert str(getattr(loaded.settings, name)) == value
