"""A setting that cannot mean anything stops the start, and the sentence names it."""

from __future__ import annotations

from pathlib import Path

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
        ("max_decode_gap", "100"),
        ("max_decode_gap", "soon"),
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


@pytest.mark.parametrize(("text", "seconds"), [("100ms", 0.1), ("0.05", 0.05), ("2s", 2.0), ("0", 0.0)])
def test_the_decode_gap_is_a_duration_in_seconds(text: str, seconds: float) -> None:
    loaded = load({}, {"OMLX_MAX_DECODE_GAP": text, "OMLX_CONFIG": "/dev/null"})
    assert loaded.settings.max_decode_gap == seconds


def test_a_decode_gap_in_milliseconds_of_former_versions_is_refused_with_what_to_write() -> None:
    with pytest.raises(SettingError, match=r"it must be a duration from 0 to 10s, such as 100ms or 0\.5s"):
        load({}, {"OMLX_MAX_DECODE_GAP": "100.0", "OMLX_CONFIG": "/dev/null"})


def test_a_former_name_is_refused_since_ignoring_it_would_open_the_server(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="OMLX_API_KEYS is called OMLX_API_KEY_FILE now"):
        load({}, {"OMLX_API_KEYS": "/keys", "OMLX_CONFIG": "/dev/null"})
    file = tmp_path / "config.toml"
    file.write_text('api_keys = "/keys"\n', "utf-8")
    with pytest.raises(SettingError, match="sets api_keys, which is called api_key_file now"):
        load({}, {}, file)
