"""Repeat, presence and frequency penalties for a whole batch, kept on the device.

Each row counts the tokens in its *window*, the last `repeat_last_n` tokens of prompt and reply. The newest token of
a row is often known to the device only (the host reads it a step later), so counts [B, V] and windows [B, N] live on
the device and are updated there.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import Any

import mlx.core as mx
import numpy as np

from omlx.messages.request import Sampling


class Penalties:
    """The penalties of `rows`, of which at least one has some."""

    @classmethod
    def of(cls, rows: Rows[Any], vocabulary: int) -> Penalties | None:
        """None where no row asks for penalties."""
        return cls(rows, vocabulary) if any(penalty_window(row.sampling, row.context) for row in rows) else None

    def __init__(self, rows: Rows[Any], vocabulary: int) -> None:
        settings: list[Sampling] = [row.sampling for row in rows]
        sizes = [max(penalty_window(row.sampling, row.context), 1) for row in rows]
        counts = np.zeros((len(rows), vocabulary), np.int32)
        window = np.full((len(rows), max(sizes)), -1, np.int32)
        places = np.zeros(len(rows), np.int32)
        for index, (row, size) in enumerate(zip(rows, sizes, strict=True)):
            if not penalty_window(row.sampling, row.context):
                continue
            recent = np.array(row.tokens[-size:], np.int32)
            np.add.at(counts[index], recent, 1)
            window[index, : len(recent)] = recent
            places[index] = len(recent) % size
        self._active = mx.array([int(penalty_window(row.sampling, row.context) > 0) for row in rows], dtype=mx.int32)
        self._rows = mx.arange(len(rows))
        self._sizes = mx.array(sizes, dtype=mx.int32)
        self._counts, self._window, self._places = mx.array(counts), mx.array(window), mx.array(places)
        self._repeat = mx.array([max(s.repeat_penalty, 1e-3) for s in settings])[:, None]
        self._presence = mx.array([s.presence_penalty for s in settings])[:, None]
        self._frequency = mx.array([s.frequency_penalty for s in settings])[:, None]

    def __call__(self, logits: mx.array, inputs: mx.array | None) -> mx.array:
        """`logits` [B, V] after the penalties; `inputs` [B] are tokens the rows' records lack, -1 for none."""
        if inputs is not None:
            self._push(inputs)
        # 16 bits are too coarse for a small penalty on a large logit.
        logits = logits.astype(mx.float32)
        # Only tokens in the windows can change. An empty place stands for token 0, whose count decides as any other's.
        tokens = mx.maximum(self._window, 0)
        counts = mx.take_along_axis(self._counts, tokens, axis=1)
        values = mx.take_along_axis(logits, tokens, axis=1)
        repeated = mx.where(values > 0, values / self._repeat, values * self._repeat)
        changed = mx.where(counts > 0, repeated - counts * self._frequency - self._presence, values)
        return mx.put_along_axis(logits, tokens, changed, axis=1)

    def _push(self, inputs: mx.array) -> None:
        """Take a token into each window, and the one that falls out off its count."""
        inputs = inputs.astype(mx.int32)
        pushed = (inputs >= 0).astype(mx.int32)
        oldest = self._window[self._rows, self._places]
        fell_out = (oldest >= 0).astype(mx.int32) * pushed * self._active
        counts = self._counts.at[self._rows, mx.maximum(oldest, 0)].add(-fell_out)
        self._counts = counts.at[self._rows, mx.maximum(inputs, 0)].add(pushed * self._active)
        newest = mx.where(pushed > 0, inputs, oldest)
        self._window = mx.put_along_axis(self._window, self._places[:, None], newest[:, None], axis=1)
        self._places = (self._places + pushed) % self._sizes


def penalty_window(row: Sampling, context: int) -> int:
    """Tokens the penalties of a row look at; 0 where it has none."""
    neutral = row.repeat_penalty == 1 and row.presence_penalty == 0 and row.frequency_penalty == 0
    if neutral or row.repeat_last_n == 0:
        return 0
    return context if row.repeat_last_n < 0 else min(row.repeat_last_n, context)
