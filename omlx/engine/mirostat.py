"""Mirostat 1 and 2: sampling that steers towards a wanted surprise (`tau`, in bits) instead of a fixed cut.

A row's *mu* is the largest surprise it allows at present; it starts at twice tau and learns from each token sampled.
It lives on the device and is handed back to the sequence when the batch changes.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import Any

import mlx.core as mx

_ESTIMATE_FROM = 100
"""Version 1 estimates how steep the distribution is from this many candidates."""


class Mirostat:
    """The mirostat rows among `rows`, of which there is at least one; other rows pass through unchanged."""

    @classmethod
    def of(cls, rows: Rows[Any]) -> Mirostat | None:
        return cls(rows) if any(row.sampling.mirostat for row in rows) else None

    def __init__(self, rows: Rows[Any]) -> None:
        settings = [row.sampling for row in rows]
        self._first = mx.array([s.mirostat == 1 for s in settings])[:, None]
        self._active = mx.array([s.mirostat in (1, 2) for s in settings])[:, None]
        self._tau = mx.array([s.mirostat_tau for s in settings], dtype=mx.float32)
        self._eta = mx.array([s.mirostat_eta for s in settings], dtype=mx.float32)
        self.mu = mx.stack(
            [
                mx.array(2 * row.sampling.mirostat_tau, dtype=mx.float32)
                if row.mirostat_mu is None
                else row.mirostat_mu
                for row in rows
            ]
        )

    def filter(self, values: mx.array, plain: mx.array) -> mx.array:
        """Candidates [R, K] that stay: `values` cut by mu for mirostat rows, `plain` (filtered as usual) for others."""
        rank = mx.arange(values.shape[-1])
        probability = mx.softmax(values, axis=-1)
        surprise = -mx.log2(mx.maximum(probability, 1e-30))
        mu = self.mu[:, None]
        keep = mx.where(self._first, rank < _wanted_count(probability, mu), surprise <= mu) | (rank == 0)
        return mx.where(self._active, mx.where(keep, values, -mx.inf), plain)

    def learn(self, values: mx.array, place: mx.array) -> None:
        """Move mu by how far the surprise of the sampled candidate (`place` [R, 1]) was off."""
        probability = mx.take_along_axis(mx.softmax(values, axis=-1), place, axis=-1)[:, 0]
        error = -mx.log2(mx.maximum(probability, 1e-30)) - self._tau
        self.mu = self.mu - self._eta * error


def _wanted_count(probability: mx.array, mu: mx.array) -> mx.array:
    """How many candidates give a surprise of mu, were the distribution Zipf's with the exponent seen at its head."""
    count = min(_ESTIMATE_FROM, probability.shape[-1])
    head = mx.maximum(probability[:, :count], 1e-30)
    steps = mx.log(mx.arange(2, count + 1) / mx.arange(1, count))
    falls = mx.log(head[:, :-1] / head[:, 1:])
    exponent = (steps * falls).sum(axis=-1, keepdims=True) / (steps * steps).sum()
    excess = exponent - 1
    size = probability.shape[-1]
    wanted = (excess * mx.power(2.0, mu) / (1 - mx.power(float(size), -excess))) ** (1 / exponent)
    return mx.maximum(mx.where(mx.isnan(wanted), 1.0, wanted), 1.0)
