"""The results of one comparison: what is kept as JSON, the ratios in it, what must be reached, and the table."""

from __future__ import annotations

from statistics import median
from typing import Literal

import msgspec

from bench.workloads import more_is_better

OMLX = "omlx"


class Row(msgspec.Struct):
    """One figure of one workload: the value of each round, by server."""

    workload: str
    figure: str
    values: dict[str, list[float]]

    @property
    def name(self) -> str:
        return f"{self.workload}, {self.figure}"

    def of(self, server: str) -> float | None:
        found = self.values.get(server)
        return median(found) if found else None


class Results(msgspec.Struct, kw_only=True):
    """A run of bench/suite.py. `servers` maps each to its version; `load` is the machine's load average at the end."""

    when: str
    machine: str
    load: float
    model: str
    sizes: str
    rounds: int
    command: str
    servers: dict[str, str]
    mlx_peers: list[str]
    rows: list[Row]
    failures: list[str] = []
    skipped: list[str] = []
    """What was not begun any more because the time was over."""


class Goal(msgspec.Struct, frozen=True):
    """What oMLX promises: a ratio of oMLX to the best peer, or (`own`) a value of oMLX's that stands alone."""

    least: float | None = None
    most: float | None = None
    against: Literal["mlx", "all", "own"] = "mlx"

    def met(self, value: float) -> bool:
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    def __str__(self) -> str:
        return f"≥ {self.least:g}" if self.least is not None else f"≤ {self.most:g}"


GOALS = {
    ("single", "decode tok/s"): Goal(least=1.0),
    ("sixteen", "whole tok/s"): Goal(least=1.2),
    ("burst", "many of few"): Goal(least=1.0, against="own"),
    ("contended", "first token s"): Goal(most=0.5, against="all"),
    ("agent", "all turns s"): Goal(most=0.6, against="all"),
    ("restart", "share of cold"): Goal(most=0.25, against="own"),
}


def best(row: Row, servers: list[str]) -> float | None:
    """The best median that one of `servers` reached."""
    found = [value for server in servers if (value := row.of(server)) is not None]
    if not found:
        return None
    return max(found) if more_is_better(row.figure) else min(found)


def ratio(row: Row, servers: list[str]) -> float | None:
    """oMLX's median by the best of the others'; None where either is missing."""
    ours, theirs = row.of(OMLX), best(row, servers)
    return ours / theirs if ours is not None and theirs else None


def judged(row: Row, results: Results) -> tuple[Goal, float] | None:
    """The row's goal and the value it is held to; None where there is no goal or nothing to hold to it."""
    goal = GOALS.get((row.workload, row.figure))
    if goal is None:
        return None
    others = [name for name in results.servers if name != OMLX]
    value = {"own": row.of(OMLX), "mlx": ratio(row, results.mlx_peers), "all": ratio(row, others)}[goal.against]
    return None if value is None else (goal, value)


def table(results: Results) -> str:
    """Markdown: a row per figure, a column per server, the two ratios, and the goal with whether it is met."""
    others = [name for name in results.servers if name != OMLX]
    lines = [
        f"{results.model}, sizes {results.sizes}, {results.rounds} round(s), {results.when}, load {results.load:.1f}",
        results.machine,
        "; ".join(f"{name} {version}" for name, version in results.servers.items()),
        f"`{results.command}`",
        "",
        _line(["workload", "figure", OMLX, *others, "of best MLX peer", "of best", "goal"]),
        _line(["---"] * (len(others) + 6)),
    ]
    for row in results.rows:
        verdict = judged(row, results)
        goal = "" if verdict is None else f"{verdict[0]}: {'met' if verdict[0].met(verdict[1]) else '**missed**'}"
        cells = [_number(row.of(name)) for name in (OMLX, *others)]
        ratios = [_number(ratio(row, servers)) for servers in (results.mlx_peers, others)]
        lines.append(_line([row.workload, row.figure, *cells, *ratios, goal]))
    lines += [f"failed: {failure}" for failure in results.failures]
    lines += [f"not run, the time was over: {name}" for name in results.skipped]
    return "\n".join(lines)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
