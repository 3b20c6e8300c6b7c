"""The comparison itself, with a model of no size: every workload runs on oMLX and on a peer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from bench.suite import command_of
from bench.table import Results
from bench.workloads import WORKLOADS

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_workload_runs_on_both_servers(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    words = ["--model", "tiny", "--second", "tiny", "--sizes", "quick", "--peers", "mlx_lm", "--rounds", "1"]
    done = subprocess.run(
        [sys.executable, "bench/suite.py", *words, "--json", str(file)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = msgspec.json.decode(file.read_bytes(), type=Results)
    assert found.failures == []
    ran = {row.workload for row in found.rows if set(row.values) == {"omlx", "mlx_lm"}}
    assert ran == {*WORKLOADS, "memory", "restart", "two models", "two models, room for one"}


def test_what_is_kept_of_the_command_names_no_place_of_this_machine() -> None:
    wanted = "python bench/suite.py --sizes cpu --rounds 1"
    assert command_of(["--sizes", "cpu", "--json", "/home/me/new.json", "--rounds", "1"]) == wanted
    assert command_of(["--sizes", "cpu", "--json=/home/me/new.json", "--rounds", "1"]) == wanted
