"""Files that are no files, and a standard output that takes nothing: a sentence, never a hang or a traceback."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import PLAIN, Omlx
from tests.support.tiny import tiny_model


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("/dev/zero", "/dev/zero is neither a file nor a folder"),
        ("./fifo", "./fifo is neither a file nor a folder"),
        ("./nope.gguf", "no such file or folder: ./nope.gguf"),
        ("nope.gguf", "no such file or folder: nope.gguf"),
        ("~/nope", "no such file or folder: ~/nope"),
        ("~nobody-of-this-name/nope", "no such file or folder: ~nobody-of-this-name/nope"),
        (f"{PLAIN}\nADAPTER ~/nope", "no such file or folder: ~/nope"),
        (f"{PLAIN}\nADAPTER ./a\nADAPTER ./b", "only one ADAPTER is supported: merge the adapters into one first"),
        (f"{PLAIN}\nPARAMETER temperature 1e999", "invalid float value [1e999]"),
    ],
)
def test_create_refuses_what_it_cannot_read(real: Omlx, tmp_path: Path, source: str, message: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "Modelfile").write_text(f"FROM {source}\n")
    done = real("create", "odd", "-f", str(tmp_path / "Modelfile"), timeout=120)
    assert done.code == 1
    assert done.err.endswith(f"Error: {message}\n")


def test_a_home_folder_may_be_short_in_a_modelfile(real: Omlx, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    shutil.copytree(tiny_model("llama", taught=True), tmp_path / "models" / "mine")
    (tmp_path / "Modelfile").write_text("FROM ~/models/mine\n")
    done = real("create", "from-home", "-f", str(tmp_path / "Modelfile"), HOME=str(tmp_path))
    assert done.code == 0, done.err


def test_a_model_that_requires_a_newer_version_is_refused(real: Omlx, tmp_path: Path) -> None:
    for version, code in (("0.1.0", 0), ("99.0", 1)):
        (tmp_path / "Modelfile").write_text(f"FROM {PLAIN}\nREQUIRES {version}\n")
        done = real("create", "newer", "-f", str(tmp_path / "Modelfile"))
        assert done.code == code, done.err
    assert "this model requires Ollama 99.0 or newer, and this server stands for Ollama 0." in done.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_output_is_said(real: Omlx) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "omlx", "config"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=30
        )
    assert done.returncode == 1
    assert done.stderr == "Error: the output cannot be written: No space left on device\n"
