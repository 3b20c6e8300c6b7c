"""A *reading*: all metrics as they were at one moment, to be added up by name. The dashboard is read off it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from prometheus_client.core import Metric

Buckets = tuple[tuple[float, float], ...]
"""Of a histogram: each upper bound with the count of observations up to it."""


class MetricsReading:
    """`families` as a registry collects them."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._samples: dict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)
        for family in families:
            for sample in family.samples:
                self._samples[sample.name].append((sample.labels, sample.value))

    def total(self, name: str, **labels: str) -> float:
        """The sum over all samples of this name that have these labels."""
        return sum(value for own, value in self._samples.get(name, ()) if labels.items() <= own.items())

    def by(self, name: str, label: str) -> dict[str, float]:
        """The sum for each value of one label."""
        sums: dict[str, float] = defaultdict(float)
        for own, value in self._samples.get(name, ()):
            sums[own[label]] += value
        return dict(sums)

    def buckets(self, name: str) -> Buckets:
        """A histogram over all its labels."""
        return tuple(sorted((float(bound), count) for bound, count in self.by(f"{name}_bucket", "le").items()))


def between(now: Buckets, before: Buckets) -> Buckets:
    """What was observed since `before`."""
    earlier = dict(before)
    return tuple((bound, count - earlier.get(bound, 0)) for bound, count in now)


def quantile(part: float, buckets: Sequence[tuple[float, float]]) -> float | None:
    """As Prometheus' histogram_quantile: linear within a bucket, the last bound above all others; None of nothing."""
    total = buckets[-1][1] if buckets else 0
    if not total:
        return None
    rank = part * total
    below, low = 0.0, 0.0
    for bound, count in buckets:
        if count >= rank:
            if bound == float("inf"):
                return low
            return low + (bound - low) * ((rank - below) / (count - below) if count > below else 0)
        below, low = count, bound
    return low
