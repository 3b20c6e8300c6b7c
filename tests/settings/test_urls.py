"""URLs that are shown, and paths that are passed on."""

from __future__ import annotations

import pytest

from omlx.urls import climbs, without_credentials


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://me:pw@box:1", "http://***@box:1"),
        ("two: http://token@a/x, https://u:p%40@b?c", "two: http://***@a/x, https://***@b?c"),
        ("http://box/@me and a@b.example", "http://box/@me and a@b.example"),
        ("['http://a:b@c']", "['http://***@c']"),
        ("no URL", "no URL"),
    ],
)
def test_whom_a_url_logs_in_is_not_shown(text: str, shown: str) -> None:
    assert without_credentials(text) == shown


@pytest.mark.parametrize(
    ("path", "does"),
    [("/a/../b", True), ("/a/.", True), ("/a/%2e%2E/b", True), ("/a/..%2fb", True), ("/a/%252e./b", True),
     ("/a/..\\b", True), ("/a/%5c..%5cb", True), ("/%" + "25" * 9 + "2e", True),
     ("/a/...", False), ("/v1/models/qwen3.5:0.8b", False), ("/a/..b", False), ("/hf.co/a/b%20c", False)],
)  # fmt: skip
def test_paths_that_climb_are_known_however_they_are_encoded(path: str, does: bool) -> None:
    assert climbs(path) is does
