"""Durations, sizes and times read and print as Ollama's users know them."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx.units import (
    format_duration,
    human_bytes,
    human_parameters,
    human_time,
    parse_duration,
    parse_keep_alive,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5m", 300), ("1h30m", 5400), ("1.5h", 5400), ("-1m", -60), ("0", 0), ("+2s", 2), ("100ms", 0.1), (".5s", 0.5)],
)
def test_go_durations_parse(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("abc", 'time: invalid duration "abc"'),
        ("", 'time: invalid duration ""'),
        ("-", 'time: invalid duration "-"'),
        (".s", 'time: invalid duration ".s"'),
        ("5", 'time: missing unit in duration "5"'),
        ("1h5", 'time: missing unit in duration "1h5"'),
        ("1d", 'time: unknown unit "d" in duration "1d"'),
        ("2562048h", 'time: invalid duration "2562048h"'),
    ],
)
def test_bad_durations_give_gos_message(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"^time: ") as caught:
        parse_duration(text)
    assert str(caught.value) == message


@given(st.integers(min_value=-(10**15), max_value=10**15))
def test_a_printed_duration_parses_back(ns: int) -> None:
    assert round(parse_duration(format_duration(ns / 1e9)) * 1e9) == pytest.approx(ns, abs=1)


@given(st.text(max_size=20))
def test_any_text_parses_or_is_refused_with_a_sentence(text: str) -> None:
    try:
        parse_duration(text)
    except ValueError as error:
        assert str(error).startswith("time: ")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(None, None), ("", None), (0, 0.0), ("0", 0.0), (0.5, 0.5), (-1, math.inf), ("-1", math.inf), ("-1m", math.inf),
     ("300", 300.0), ("5m", 300.0), (10**30, math.inf), (10**400, math.inf), ("9" * 30, math.inf)],
)  # fmt: skip
def test_keep_alive_takes_every_form_clients_send(value: object, seconds: float | None) -> None:
    assert parse_keep_alive(value) == seconds


@pytest.mark.parametrize(("value", "kind"), [(True, "bool"), ([], "[]interface {}"), ({}, "map[string]interface {}")])
def test_keep_alive_of_another_type_is_refused(value: object, kind: str) -> None:
    with pytest.raises(ValueError, match="Unsupported type") as caught:
        parse_keep_alive(value)
    assert str(caught.value) == f"Unsupported type: '{kind}'"


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("8GB", 8 * 10**9), ("8GiB", 8 * 2**30), ("512 mb", 512 * 10**6), ("1.5k", 1500)]
)
def test_sizes_parse(text: str, size: int) -> None:
    assert parse_size(text) == size


def test_a_bad_size_says_what_is_expected() -> None:
    with pytest.raises(ValueError, match="GiB"):
        parse_size("lots")


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (2000, "2 KB"), (1_300_000_000, "1.3 GB"), (13_700_000_000, "13 GB")],
)
def test_bytes_print_in_decimal_units(count: int, text: str) -> None:
    assert human_bytes(count) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(8_030_000_000, "8.0B"), (7_000_000_000, "7B"), (134_515_008, "134.52M"), (22_000_000, "22M"), (5_400, "5K")],
)
def test_parameter_counts_print_as_in_ollama(count: int, text: str) -> None:
    assert human_parameters(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.5, "Less than a second from now"),
        (-1, "1 second ago"),
        (-59, "59 seconds ago"),
        (241, "4 minutes from now"),
        (-61, "About a minute ago"),
        (-3600, "About an hour ago"),
        (-86400, "24 hours ago"),
        (-86400 * 3, "3 days ago"),
        (-86400 * 20, "2 weeks ago"),
        (-86400 * 100, "3 months ago"),
        (-86400 * 800, "2 years ago"),
    ],
)
def test_times_print_relative_to_now(seconds: float, text: str) -> None:
    now = datetime(2026, 11, 29, tzinfo=UTC)
    assert human_time(now + timedelta(seconds=seconds), now) == text
