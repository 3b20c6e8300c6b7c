"""Shells complete verbs, flags and the running server's models; the committed scripts are the generated ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from omlx.cli.completions import FILES, script, write
from tests.cli.conftest import PLAIN, THINKER, Omlx

FOLDER = Path(__file__).parents[2] / "contrib" / "completions"


@pytest.mark.parametrize("shell", FILES)
def test_the_committed_script_is_up_to_date(shell: str, tmp_path: Path) -> None:
    assert (FOLDER / FILES[shell]).read_text("utf-8") == script(shell), "run `make docs`"
    write(tmp_path)
    assert (tmp_path / FILES[shell]).exists()


def complete(omlx: Omlx, line: str, *, host: str = "127.0.0.1:1") -> list[str]:
    words = line.split(" ")
    env = {"_OMLX_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    ran = omlx(host=host, **env)
    assert ran.err == ""
    return [item.removeprefix("plain,") for item in ran.out.split()]


def test_verbs_and_flags_complete(omlx: Omlx) -> None:
    assert set(complete(omlx, "omlx s")) >= {"serve", "show", "stop"}
    assert complete(omlx, "omlx run --hide") == ["--hidethinking"]


def test_models_complete_from_the_server_and_are_left_out_without_one(omlx: Omlx, real: Omlx) -> None:
    env = {"_OMLX_COMPLETE": "bash_complete", "COMP_WORDS": "omlx run t", "COMP_CWORD": "2"}
    assert set(real(**env).out.split()) >= {f"plain,{PLAIN}:latest", f"plain,{THINKER}:latest"}
    assert complete(omlx, "omlx run t") == []
