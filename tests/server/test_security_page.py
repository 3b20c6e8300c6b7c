"""docs/security.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_promise_names_a_test_that_is_there() -> None:
    page = (ROOT / "docs" / "security.md").read_text("utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page)
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text("utf-8"), re.MULTILINE)
    ]
    assert missing == []
    rows = [line for line in page.splitlines() if line.startswith("| ") and "::" not in line]
    assert [row.split("|")[1].strip() for row in rows] == ["who", "what"]


def test_every_limit_names_the_file_that_keeps_it() -> None:
    page = (ROOT / "docs" / "security.md").read_text("utf-8")
    table = page.partition("| what | limit |")[2].partition("\n\n")[0]
    named = {path for row in table.splitlines()[2:] for path in re.findall(r"`([\w/.]+)`", row.split("|")[3])}
    assert len(named) > 10
    assert [path for path in named if not any((ROOT / top / path).exists() for top in ("omlx", "registry"))] == []


def test_every_limit_names_a_place_in_the_code_that_is_there() -> None:
    page = (ROOT / "docs" / "security.md").read_text("utf-8")
    table = page.partition("| what | limit | where |")[2].partition("\n\n")[0]
    places = [place for row in table.splitlines()[2:] for place in re.findall(r"`([\w/.]+)`", row.split("|")[3])]
    assert len(places) > 20
    roots = (ROOT / "omlx", ROOT / "registry", ROOT / "cache")
    assert [place for place in places if not any((root / place).exists() for root in roots)] == []
