"""What is written to disk is little more than the records themselves: SSDs wear."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("writing_process.py")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux counts what a process writes")
@pytest.mark.parametrize(("records", "size", "most"), [(800, 64_000, 1.3), (200, 256_000, 1.1)])
def test_the_index_costs_little_beside_the_records(tmp_path: Path, records: int, size: int, most: float) -> None:
    command = [sys.executable, str(PROGRAM), str(tmp_path), str(records), str(size)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    useful, written = (int(number) for number in done.stdout.split())
    assert useful == records * size, "every record was kept"
    assert written / useful <= most
