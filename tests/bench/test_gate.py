"""The gate: ratios that got worse fail, whatever the times did; and the comparison's table says what is missed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from bench.gate import compare
from bench.table import Results, Row, judged, ratio, table

ROOT = Path(__file__).parents[2]


def results(**figures: dict[str, float]) -> Results:
    """Results of one round; a keyword is "workload__figure" with blanks as "_"; its value: server to value."""
    rows = []
    for name, values in figures.items():
        workload, _, figure = name.partition("__")
        rows.append(Row(workload, figure.replace("_", " ").replace("tokens", "tok/s"), _listed(values)))
    return Results(
        when="now", machine="a machine", load=0.0, model="tiny", sizes="quick", rounds=1, command="python x",
        servers={"omlx": "1", "mlx_lm": "1", "vllm-mlx": "1", "llama.cpp": "1"}, mlx_peers=["mlx_lm", "vllm-mlx"],
        rows=rows,
    )  # fmt: skip


def _listed(values: dict[str, float]) -> dict[str, list[float]]:
    return {name: [value] for name, value in values.items()}


def pair(ours: float, theirs: float) -> dict[str, float]:
    return {"omlx": ours, "mlx_lm": theirs}


CASES = [
    # figure, old (omlx, peer), new (omlx, peer), gain, fails
    ("sixteen__whole_tokens", (120, 100), (60, 50), 0.0, False),  # half as fast, as the peer is: the machine's doing
    ("sixteen__whole_tokens", (120, 100), (109, 100), -0.0917, False),
    ("sixteen__whole_tokens", (120, 100), (107, 100), -0.1083, True),
    ("sixteen__whole_tokens", (120, 100), (150, 100), 0.25, False),
    ("sixteen__whole_tokens", (120, 100), (120, 200), -0.5, True),  # the peer got faster
    ("contended__first_token_s", (0.2, 1.0), (0.21, 1.0), -0.0476, False),
    ("contended__first_token_s", (0.2, 1.0), (0.3, 1.0), -0.3333, True),
    ("contended__first_token_s", (0.2, 1.0), (0.1, 1.0), 1.0, False),
    ("restart__share_of_cold", (0.1, 2.0), (0.1, 0.1), 0.0, False),  # oMLX's own share, whatever the peer's
    ("restart__share_of_cold", (0.1, 2.0), (0.12, 2.0), -0.1667, True),
    ("burst__many_of_few", (1.2, 0.5), (1.0, 0.5), -0.1667, True),
]


@pytest.mark.parametrize(("figure", "old", "new", "gain", "fails"), CASES)
def test_a_ratio_more_than_a_tenth_worse_fails(
    figure: str, old: tuple[float, float], new: tuple[float, float], gain: float, fails: bool
) -> None:
    (change,) = compare(results(**{figure: pair(*old)}), results(**{figure: pair(*new)}))
    assert change.by == pytest.approx(gain, abs=1e-3)
    assert change.fails is fails


def test_the_best_mlx_peer_is_what_counts() -> None:
    row = results(single__decode_tokens={"omlx": 90, "mlx_lm": 60, "vllm-mlx": 100, "llama.cpp": 900}).rows[0]
    assert ratio(row, ["mlx_lm", "vllm-mlx"]) == pytest.approx(0.9)
    waits = results(agent__all_turns_s={"omlx": 3, "mlx_lm": 10, "vllm-mlx": 6, "llama.cpp": 5}).rows[0]
    assert ratio(waits, ["mlx_lm", "vllm-mlx"]) == pytest.approx(0.5)
    assert ratio(waits, ["mlx_lm", "vllm-mlx", "llama.cpp"]) == pytest.approx(0.6)


def test_a_figure_that_is_gone_fails_and_a_workload_that_was_not_run_does_not() -> None:
    old = results(
        agent__all_turns_s=pair(1, 2), agent__first_token_p50_s=pair(1, 2), burst__many_of_few=pair(1, 1)
    )  # fmt: skip
    changes = compare(old, results(agent__all_turns_s=pair(1, 2), agent__new_s=pair(1, 2)))
    assert [(change.name, change.fails) for change in changes] == [
        ("agent, all turns s", False),
        ("agent, first token p50 s", True),
    ]
    # oMLX itself failed in the workload: its figures are gone.
    (change,) = compare(results(agent__all_turns_s=pair(1, 2)), results(agent__all_turns_s={"mlx_lm": 2}))
    assert change.fails


def test_the_table_says_which_goals_are_missed() -> None:
    found = results(
        sixteen__whole_tokens=pair(110, 100), restart__share_of_cold=pair(0.2, 1), poisson__first_token_p50_s=pair(1, 2)
    )
    assert [judged(row, found) is not None for row in found.rows] == [True, True, False]
    lines = table(found).splitlines()
    assert next(line for line in lines if "sixteen" in line).endswith("| 1.1 | 1.1 | ≥ 1.2: **missed** |")
    assert next(line for line in lines if "restart" in line).endswith("≤ 0.25: met |")


def test_the_command_fails_where_a_ratio_does(tmp_path: Path) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_bytes(msgspec.json.encode(results(agent__all_turns_s=pair(1, 2))))
    new.write_bytes(msgspec.json.encode(results(agent__all_turns_s=pair(1, 1))))

    def gate(*words: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "bench/gate.py", *map(str, words)], cwd=ROOT, capture_output=True, text=True
        )

    assert gate(old, "--against", old).returncode == 0
    worse = gate(new, "--against", old)
    assert worse.returncode == 1
    assert worse.stdout.splitlines()[0] == "FAIL  agent, all turns s: 0.5 -> 1 (-50%)"
    assert gate(new).returncode == 2  # no committed table of this model


def test_committed_tables_can_be_read() -> None:
    for path in (ROOT / "bench" / "results").glob("*.json"):
        kept = msgspec.json.decode(path.read_bytes(), type=Results)
        assert kept.rows and not any(f": {'omlx'}: " in failure for failure in kept.failures), path
        assert all(not change.fails for change in compare(kept, kept))
