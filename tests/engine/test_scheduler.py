"""The policy: who is next, how much of a prompt fits between two steps, which rows go together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from omlx.engine.engine import Engine
from omlx.engine.latency import PrefillChunks
from omlx.engine.prefill_budget import PrefillBudget
from omlx.engine.scheduler import (
    Candidate,
    FairShare,
    WaitingLine,
    choose_group,
    chunk_end,
    next_prefill,
)
from omlx.engine.weights import WeightsError, choose
from omlx.messages.load_spec import EngineConfig
from tests.engine.support import prompt, run, spec


def waiting(id: int, priority: str = "interactive", tokens: int = 100) -> Any:
    return SimpleNamespace(id=id, spec=SimpleNamespace(priority=priority), tokens=[0] * tokens, remaining=tokens)


def test_classes_get_their_weights_share_and_none_starves() -> None:
    line = WaitingLine()
    for at in range(63):
        for offset, name in enumerate(("interactive", "batch", "background")):
            line.push(waiting(at * 3 + offset, name))
    first = [sequence.spec.priority for sequence in (line.pop(lambda _: True) for _ in range(42)) if sequence]
    assert [first.count(name) for name in ("interactive", "batch", "background")] == [32, 8, 2]


def test_within_a_class_first_come_first_served_and_nobody_overtakes_one_that_does_not_fit_yet() -> None:
    line = WaitingLine()
    for at in range(3):
        line.push(waiting(at))
    line.push(waiting(9, "background"))
    assert line.pop(lambda sequence: sequence.id != 0).id == 9  # type: ignore[union-attr]
    assert line.pop(lambda sequence: sequence.id != 0) is None
    assert [line.pop(lambda _: True).id for _ in range(3)] == [0, 1, 2]  # type: ignore[union-attr]
    assert line.pop(lambda _: True) is None


def test_removed_sequences_do_not_come_up() -> None:
    line = WaitingLine()
    for at in range(4):
        line.push(waiting(at))
    assert [sequence.id for sequence in line.remove({1, 3, 7})] == [1, 3]
    assert [sequence.id for sequence in line] == [0, 2] and len(line) == 2


def test_a_class_that_was_idle_has_no_credit() -> None:
    share = FairShare()
    for _ in range(50):
        share.charge(share.choose(["background"]), 100)
    turns = []
    for _ in range(40):
        turns.append(share.choose(["interactive", "background"]))
        share.charge(turns[-1], 100)
    assert turns.count("background") == 2


def test_prompts_take_turns_between_the_oldest_and_the_shortest() -> None:
    line = [Candidate(0, 5000, 0), Candidate(1, 900, 0), Candidate(2, 50, 0)]
    assert [next_prefill(line, FairShare(), turn).id for turn in range(4)] == [0, 2, 0, 2]


@pytest.mark.parametrize(
    ("position", "total", "budget", "rows", "expected"),
    [
        (0, 100, 512, 100, 100),
        (0, 100, 512, 99, 99),
        (99, 100, 512, 0, 100),
        (60, 100, 512, 40, 100),
        (0, 100, 30, 40, 30),
        (0, 1, 9, 0, 1),
    ],
)
def test_chunk_end(position: int, total: int, budget: int, rows: int, expected: int) -> None:
    assert chunk_end(position, total, budget, logits_rows=rows) == expected


@pytest.mark.parametrize(
    ("length", "groups", "expected"),
    [
        (100, [], None),
        (100, [[120, 90]], 0),
        (100, [[10_000]], None),
        (10_000, [[100] * 4], None),
        (9_800, [[100, 90], [10_000]], 1),
        (1_000, [[1_500]], 0),
        (200, [[1_000, *[200] * 5]], 0),
        (200, [[1_000, *[200] * 6]], None),  # each of them alone would be worth it, all together are not
    ],
)
def test_rows_are_padded_together_only_while_that_costs_less_than_the_weights(
    length: int, groups: list[list[int]], expected: int | None
) -> None:
    assert choose_group([length], groups, token_bytes=100_000, weight_bytes=500_000_000) == expected


def test_long_and_short_sequences_run_in_groups_of_their_own_with_the_same_replies() -> None:
    from tests.engine.support import bare, loaded

    model = loaded("llama", endless=True)
    small = msgspec.structs.replace(model, weight_bytes=60 * model.kv_bytes_per_token)
    machine = Engine(small, EngineConfig(context_length=4096, max_concurrent_requests=16))
    lengths = [400, 20, 300, 10, 390]
    replies = run(machine, [spec(at, prompt(length, at), new=20) for at, length in enumerate(lengths)], every=1)
    assert 2 <= machine.max_batch < 5
    for at, length in enumerate(lengths):
        assert replies.tokens[at] == bare("llama", prompt(length, at), 20)


@pytest.mark.parametrize("delay", [0, 1])
def test_the_pace_learns_from_the_time_between_reads_and_keeps_the_decodes_their_share(delay: int) -> None:
    """A device that decodes in 10 ms and reads in 12 ms and 30 µs a token; the host only sees moments.

    By the backend, a chunk shows in the first or in the second interval behind its launch.
    """
    now = 0.0
    pace = PrefillBudget(step_s=0.05, fixed_s=0.006, token_s=0.00001, largest=512, max_gap_s=0.1, clock=lambda: now)
    queued = [0.0, 0.0]
    reading = decoding = longest = 0.0
    for step in range(600):
        now += 0.010 + queued[delay]
        pace.decoded(1)
        seconds = pace.seconds(decoding=True, eager=False) if step > 40 else 0.0
        read = PrefillChunks().plus(pace.tokens(seconds), owing=True) if seconds else PrefillChunks()
        cost = 0.012 * len(read.chunks) + read.tokens * 3e-5
        pace.read(read, decoding=True)
        queued = [cost, queued[0]]
        if step > 300:
            reading, decoding, longest = reading + cost, decoding + 0.010, max(longest, cost)
    assert abs(pace.step_s / 0.010 - 1) < 0.1
    assert 0.33 < decoding / (reading + decoding) < 0.55
    assert 0.02 < longest < 0.09


@pytest.mark.parametrize(("step_s", "room_s"), [(0.2, 0.8), (0.4, 1.0), (3.0, 1.0)])
def test_a_device_that_cannot_hold_the_gap_lets_no_stream_stand_still(step_s: float, room_s: float) -> None:
    """Chunks may take four steps, but no longer than a second where steps are slow: an overloaded processor."""
    budget = PrefillBudget(step_s=step_s, fixed_s=0.02, token_s=0.001, largest=512, max_gap_s=0.1)
    seconds = budget.seconds(decoding=True, eager=True)
    assert seconds == pytest.approx(room_s)
    assert budget.cost(PrefillChunks((budget.tokens(seconds),))) <= room_s


@pytest.mark.parametrize(
    ("policy", "device", "quantized", "free_gb", "expected"),
    [
        ("auto", "cpu", True, 16, (True, "float32")),
        ("auto", "cpu", False, 16, (False, "float32")),
        ("auto", "cpu", True, 4, (False, "float32")),
        ("auto", "cpu", False, 4, (False, None)),
        ("auto", "cuda", True, 80, (True, "bfloat16")),
        ("auto", "cuda", True, 2, (False, None)),
        ("auto", "cuda", False, 80, (False, None)),
        ("auto", "metal", True, 80, (False, None)),
        ("quantized", "cuda", True, 80, (False, None)),
        ("dequantized", "metal", True, 80, (True, "bfloat16")),
        ("float16", "metal", True, 80, (True, "float16")),
    ],
)
def test_how_weights_are_held(
    policy: str, device: Any, quantized: bool, free_gb: int, expected: tuple[bool, str | None]
) -> None:
    plan = choose(policy, device=device, quantized=quantized, parameters=1_000_000_000, free_bytes=free_gb * 10**9)
    assert (plan.dequantize, plan.dtype) == expected
    assert plan.reason


def test_an_unknown_weights_policy_is_an_error() -> None:
    with pytest.raises(WeightsError):
        choose("int3", device="cpu", quantized=True, parameters=1, free_bytes=1)
