"""The index finds the pieces whose tokens are nearest, whatever their beginnings share, in databases of before too."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest
from omlx_cache.database import FILE
from omlx_cache.index import Index
from omlx_cache.keys import TOKEN_BYTES
from omlx_cache.records import IndexEntry, Kind, Piece

PARENT, SPACE = b"p" * 32, b"n" * 32


def filled(folder: Path, texts: list[bytes]) -> Index:
    index = Index(folder)
    for number, packed in enumerate(texts):
        piece = Piece(number.to_bytes(32, "big"), PARENT, 0, packed, b"")
        index.adopt(IndexEntry(piece, Kind.KV, 4096), SPACE, float(number))
    return index


def texts(seed: int, shared: int) -> list[bytes]:
    """Packed tokens of different lengths whose first `shared` tokens are of two kinds."""
    source = random.Random(seed)
    beginnings = [bytes([kind]) * TOKEN_BYTES * shared for kind in (3, 7)]
    return sorted(
        {
            source.choice(beginnings) + source.randbytes(TOKEN_BYTES * source.randint(1, 40))
            for _ in range(60)
        }
    )  # fmt: skip


@pytest.mark.parametrize("shared", [0, 5, 31, 32, 33, 100])
def test_neighbours_are_the_nearest_in_order(tmp_path: Path, shared: int) -> None:
    known = texts(1, shared)
    index = filled(tmp_path, known)
    for packed in [*known, *texts(2, shared), b"", b"\xff" * 500]:
        before = [text for text in known if text < packed][-1:]
        after = [text for text in known if text >= packed][:1]
        found = [entry.piece.packed for entry in index.neighbours(PARENT, Kind.KV, packed)]
        assert found == [*before, *after]
    assert index.neighbours(b"q" * 32, Kind.KV, known[0]) == []
    assert index.sizes(PARENT, Kind.KV) == {len(text) // TOKEN_BYTES for text in known}
    index.close()


def test_a_database_of_before_is_changed_in_place_and_keeps_its_records(tmp_path: Path) -> None:
    filled(tmp_path, [b"a" * 400, b"b" * 400]).close()
    database = sqlite3.connect(tmp_path / FILE)
    database.executescript(
        "DROP TABLE fingerprints; DROP INDEX by_start;"
        "CREATE INDEX by_parent ON records (parent, kind, tokens);"
        "CREATE INDEX by_size ON records (parent, kind, size);"
    )
    database.close()
    index = Index(tmp_path)
    assert not index.is_new
    assert [entry.piece.packed for entry in index.neighbours(PARENT, Kind.KV, b"ab")] == [b"a" * 400, b"b" * 400]
    index.name_model(SPACE, "model", "print")
    assert index.fingerprints() == {SPACE.hex(): "print"}
    index.close()
    names = {name for (name,) in sqlite3.connect(tmp_path / FILE).execute("SELECT name FROM sqlite_master")}
    assert "by_start" in names
    assert not names & {"by_parent", "by_size"}
