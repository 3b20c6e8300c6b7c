"""Figures: named rows of measured values, what is said of each, and how two reports compare."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Literal

import msgspec

from omlx.bench.target import TimedReply

Unit = Literal["tok/s", "s", "bytes", "J/tok", "tok/J", "W"]
FORMAT = 1


class Figure(msgspec.Struct, frozen=True):
    """`values` has one entry per round or request. More is better for rates, less for everything else."""

    name: str
    unit: Unit
    values: list[float]

    @property
    def median(self) -> float:
        return median(self.values)

    def percentile(self, share: float) -> float:
        return percentile(self.values, share)


class Report(msgspec.Struct, kw_only=True):
    """One run of `omlx bench`. `notes` are sentences about what could not be measured, or not as it was meant."""

    format: int = FORMAT
    when: str
    model: str
    url: str
    api: str
    server: str
    machine: str
    figures: list[Figure]
    notes: list[str] = []
    power: str = ""
    """The server's power policy during the run, and why it limits work; "": none, or not measured."""


class Difference(msgspec.Struct, frozen=True):
    """A figure in two reports; `ratio` is the second median by the first."""

    name: str
    unit: Unit
    before: float
    after: float
    ratio: float
    verdict: Literal["better", "worse", "within spread"]


def compare(before: Report, after: Report) -> list[Difference]:
    """All figures that both have. Where their ranges overlap, the difference says nothing."""
    other = {figure.name: figure for figure in after.figures}
    return [_difference(figure, other[figure.name]) for figure in before.figures if figure.name in other]


def _difference(a: Figure, b: Figure) -> Difference:
    ratio = b.median / a.median if a.median else 0.0
    verdict: Literal["better", "worse", "within spread"] = "within spread"
    if min(b.values) > max(a.values) or max(b.values) < min(a.values):
        verdict = "better" if (b.median > a.median) == (a.unit in ("tok/s", "tok/J")) else "worse"
    return Difference(a.name, a.unit, a.median, b.median, ratio, verdict)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` (0 to 1) of all are at or below."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def whole_rate(replies: Sequence[TimedReply]) -> float:
    """Tokens per second of all replies together, from the first question to the last token."""
    begun, ended = min(each.asked for each in replies), max(each.times[-1] for each in replies)
    return sum(each.tokens for each in replies) / (ended - begun)


def decode_rate(replies: Sequence[TimedReply]) -> float | None:
    """Tokens per second of all replies together from the first token on: the prompts are not in it.

    None where most of it came at once: what time lies between such tokens says nothing.
    """
    moments = sorted(moment for each in replies for moment in each.times)
    longest = max(len(each.times) for each in replies)
    if len(set(moments)) <= max(1, longest // 4):
        return None
    return (sum(each.tokens for each in replies) - 1) / (moments[-1] - moments[0])
