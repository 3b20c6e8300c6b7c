"""Folders of links that killed processes left behind are removed, and nothing else is."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from omlx.engine import blas


def test_leftover_links_go_at_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    target = tmp_path / "libopenblas.so"
    target.touch()
    old, young, kept, foreign = (tmp_path / name for name in ("omlx-blas-a", "omlx-blas-b", "omlx-blas-c", "else-d"))
    for folder in (old, young, kept, foreign):
        folder.mkdir()
        (folder / "libopenblas.so").symlink_to(target)
    (kept / "mine.txt").write_text("not a link")
    for folder in (old, kept, foreign):
        os.utime(folder, (1, 1))
    blas._remove_leftovers()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "else-d", "libopenblas.so", "omlx-blas-b", "omlx-blas-c"]  # fmt: skip
    assert target.exists()
    assert (kept / "mine.txt").read_text() == "not a link"
