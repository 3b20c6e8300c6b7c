"""Files that are no files, and a standard output that takes nothing: a sentence, never a hang or a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Omlx


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("/dev/zero", "/dev/zero is neither a file nor a folder"),
        ("./fifo", "./fifo is neither a file nor a folder"),
        ("./nope.gguf", "no such file or folder: ./nope.gguf"),
        ("nope.gguf", "no such file or folder: nope.gguf"),
    ],
)
def test_create_refuses_what_it_cannot_read(real: Omlx, tmp_path: Path, source: str, message: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "Modelfile").write_text(f"FROM {source}\n")
    done = real("create", "odd", "-f", str(tmp_path / "Modelfile"), timeout=120)
    assert done.code == 1
    assert done.err.endswith(f"Error: {message}\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_output_is_said(real: Omlx) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "omlx", "config"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=30
        )
    assert done.returncode == 1
    assert done.stderr == "Error: the output cannot be written: No space left on device\n"
