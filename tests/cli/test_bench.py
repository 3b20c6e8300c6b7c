"""`omlx bench` against the real server: it measures, saves, compares, and says what it cannot do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import PLAIN, Omlx
from tests.support.server import ServerProcess

FIGURES = [
    "prefill 512 cold", "prefill 512 warm", "first token alone", "first token beside 4 streams", "first token 512 cold",
    "first token 512 hot", "first token 512 changed beginning", "first token 512 from SSD", "peak memory",
]  # fmt: skip


def test_a_model_is_measured_and_two_runs_are_compared(real: Omlx, server: ServerProcess, tmp_path: Path) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    ran = real("bench", PLAIN, "--quick", "--out", str(first), timeout=120)
    assert ran.code == 0, ran.err
    report = json.loads(first.read_text())
    found = {figure["name"]: figure["values"] for figure in report["figures"]}
    assert set(FIGURES) <= set(found), report["notes"]
    assert all(value > 0 for values in found.values() for value in values)
    assert report["server"].startswith("omlx ")
    # What was asked for was new each time: nothing of it came from the cache.
    assert not any("came from the server's cache" in note for note in report["notes"])
    assert "first token alone" in ran.out

    other = real("bench", PLAIN, "--quick", "--json", "--url", f"{server.url}/v1", "--api", "openai", timeout=120)
    assert other.code == 0, other.err
    second.write_text(other.out)
    compared = real("bench", "--compare", str(first), str(second))
    assert compared.code == 0
    assert "first token 512 hot" in compared.out
    assert "B IS" in compared.out


def test_a_model_that_is_not_there_is_one_sentence(real: Omlx) -> None:
    for words in (("bench", "nobody"), ("bench", "nobody", "--api", "openai")):
        ran = real(*words)
        assert (ran.code, ran.out) == (1, "")
        assert "not found" in ran.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ((), "accepts 1 arg(s), received 0"),
        (("m", "--api", "grpc"), '--api is "ollama" or "openai", not "grpc"'),
        (("m", "--rounds", "0"), "--rounds must be from 1 to 100"),
        (("m", "--url", "127.0.0.1:1"), "could not connect to the server at http://127.0.0.1:1"),
        (("--compare", "a.json"), "--compare takes two files"),
        (("--compare", "/nowhere/a.json", "/nowhere/b.json"), "/nowhere/a.json cannot be read"),
    ],
)
def test_what_cannot_be_measured_is_one_sentence(inline: Omlx, words: tuple[str, ...], complaint: str) -> None:
    ran = inline("bench", *words)
    assert ran.code == 1
    assert complaint in ran.err
