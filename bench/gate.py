"""Is oMLX slower than it was, next to its peers? Run before a release.

    python bench/suite.py --json new.json && python bench/gate.py new.json
    python bench/gate.py new.json --against bench/results/smollm2-cpu.json

Compared are ratios to the best MLX peer of the same run, and oMLX's own ratios (burst, restart): never times, which
say more about the machine. A ratio that is more than 10 % worse than in the committed table fails, as does a figure
that the table has and the new run lacks (unless its workload was not run at all). The committed table is the one in
bench/results/ of the same model and sizes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec

sys.path[:0] = [str(Path(__file__).parents[1])]

from bench.table import GOALS, OMLX, Results, Row, ratio
from bench.workloads import more_is_better

FOLDER = Path(__file__).parent / "results"
TOLERANCE = 0.10


class Change(NamedTuple):
    """`by` is how much better the new ratio is: 0.05 is 5 % better, -0.2 is 20 % worse. None: the figure is missing."""

    name: str
    old: float
    new: float | None
    by: float | None

    @property
    def fails(self) -> bool:
        return self.by is None or self.by < -TOLERANCE


def compare(old: Results, new: Results) -> list[Change]:
    """All ratios of the old table, held against the new one."""
    rows = {(row.workload, row.figure): row for row in new.rows}
    ran = {row.workload for row in new.rows}
    changes = []
    for row in old.rows:
        before = _compared(row, old)
        if before is None or row.workload not in ran:
            continue
        found = rows.get((row.workload, row.figure))
        after = None if found is None else _compared(found, new)
        changes.append(Change(row.name, before, after, None if after is None else _gain(row.figure, before, after)))
    return changes


def _compared(row: Row, results: Results) -> float | None:
    goal = GOALS.get((row.workload, row.figure))
    return row.of(OMLX) if goal is not None and goal.against == "own" else ratio(row, results.mlx_peers)


def _gain(figure: str, before: float, after: float) -> float:
    if not before or not after:
        return 0.0 if before == after else -1.0
    return (after / before if more_is_better(figure) else before / after) - 1


def committed(new: Results) -> Path:
    """The file in bench/results of the same model and sizes. FileNotFoundError where there is none."""
    for path in sorted(FOLDER.glob("*.json")):
        old = msgspec.json.decode(path.read_bytes(), type=Results)
        if (old.model, old.sizes) == (new.model, new.sizes):
            return path
    raise FileNotFoundError(f"{FOLDER} has no table for {new.model} with sizes {new.sizes}: commit one, or --against")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("new", type=Path)
    parser.add_argument("--against", type=Path, help="default: the committed table of the same model and sizes")
    options = parser.parse_args()
    new = msgspec.json.decode(options.new.read_bytes(), type=Results)
    try:
        against = options.against or committed(new)
    except FileNotFoundError as error:
        parser.error(str(error))
    changes = compare(msgspec.json.decode(against.read_bytes(), type=Results), new)
    for change in changes:
        told = "missing" if change.new is None or change.by is None else f"{change.new:.3g} ({change.by:+.0%})"
        print(f"{'FAIL' if change.fails else 'ok  '}  {change.name}: {change.old:.3g} -> {told}")
    worse = sum(change.fails for change in changes)
    print(f"{len(changes)} ratios compared with {against}: {worse or 'none'} worse by more than {TOLERANCE:.0%}")
    return 1 if worse or not changes else 0


if __name__ == "__main__":
    sys.exit(main())
