"""Choosing the next token of every row of a batch at once.

A *sample* is the choice for one step. The chain is llama.cpp's, on which users' settings were tuned: penalties and
bias, then top_k, typical_p, top_p, min_p, temperature, then chance. Each row has its own settings and its own seed:
its n-th random number is a function of (seed, n) alone, and the path a row takes is decided by its own settings, so
a reply does not depend on which other rows share its batch. Filters that no row uses are not computed; a batch of
greedy rows is one argmax. A `Sampler` serves a fixed list of rows and is made anew when rows join or leave.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import Any, NamedTuple, Protocol

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from omlx.engine.mirostat import Mirostat
from omlx.engine.penalties import Penalties, penalty_window
from omlx.messages.request import Sampling

NARROW_SIZES = (64, 1024)
"""Candidates kept for rows whose top_k allows it; all other rows look at the whole vocabulary, sorted."""
_NUMBERS = 64
"""Random numbers made ahead per row."""


class Row(Protocol):
    """What the sampler asks of a sequence."""

    seed: int
    tokens: list[int]
    context: int
    mirostat_mu: Any

    @property
    def sampling(self) -> Sampling: ...
    @property
    def wants_logprobs(self) -> int | None:
        """How many alternatives to report; None: no log probabilities at all."""


class Sample(NamedTuple):
    """One step's choices, lazily computed."""

    tokens: mx.array
    """[B] int32"""
    logprobs: mx.array | None
    """[B] log probability of each choice under the model itself, where any row wants it"""
    top_tokens: mx.array | None
    """[B, k] ids of the most likely tokens, most likely first"""
    top_logprobs: mx.array | None

    def arrays(self) -> list[mx.array]:
        return [array for array in self if array is not None]

    def first(self, count: int) -> Sample:
        """Of the first `count` rows."""
        return Sample(self.tokens[:count], *(None if array is None else array[:count] for array in self[1:]))

    def row(self, at: int) -> Sample:
        """Of one row."""
        rows = slice(at, at + 1)
        return Sample(self.tokens[rows], *(None if array is None else array[rows] for array in self[1:]))


def draws_alone(row: Row) -> bool:
    """Whether a sample of this row depends on nothing but its logits and its random number: on no earlier sample."""
    return not row.sampling.mirostat and not penalty_window(row.sampling, row.context)


class Sampler:
    """Samples for `rows`. `drawn[i]` is how many tokens row i has had sampled already."""

    def __init__(self, rows: Rows[Row], sampled: Rows[int], vocabulary: int) -> None:
        settings = [row.sampling for row in rows]
        self._groups = [_Group(rows, sampled, members, size) for size, members in _split(settings, vocabulary)]
        self._order = _inverse([index for group in self._groups for index in group.members])
        self._bias = _bias(settings, vocabulary)
        self._penalties = Penalties.of(rows, vocabulary)
        wanted = [row.wants_logprobs for row in rows]
        self._top = max((count for count in wanted if count is not None), default=-1)

    def __call__(self, logits: mx.array, inputs: mx.array | None = None, mask: mx.array | None = None) -> Sample:
        """Sample from `logits` [B, V].

        `inputs` [B] are the tokens these logits follow, -1 for rows that know theirs, None where all do; `mask` [B, V]
        is true for tokens the grammars allow.
        """
        raw = logits
        if self._penalties is not None:
            logits = self._penalties(logits, inputs)
        if self._bias is not None:
            logits = logits + self._bias
        if mask is not None:
            logits = mx.where(mask, logits, -mx.inf)
        tokens = self._choose(logits)
        return Sample(tokens, *self._report(raw, tokens)) if self._top >= 0 else Sample(tokens, None, None, None)

    def seek(self, sampled: Rows[int]) -> None:
        """Go on as if row i had had `drawn[i]` tokens sampled. For rows that sample alone."""
        for group in self._groups:
            group.seek([sampled[index] for index in group.members])

    def close(self, rows: Rows[Row]) -> None:
        """Hand state that outlives this sampler back to the rows it was made for."""
        for group in self._groups:
            if group.mirostat is not None:
                for index, member in enumerate(group.members):
                    rows[member].mirostat_mu = group.mirostat.mu[index]

    def _choose(self, logits: mx.array) -> mx.array:
        if not self._groups:
            return mx.argmax(logits, axis=-1)
        parts = [group(logits) for group in self._groups]
        if len(parts) == 1:
            return parts[0]
        return mx.concatenate(parts)[self._order]

    def _report(self, logits: mx.array, tokens: mx.array) -> tuple[mx.array, mx.array | None, mx.array | None]:
        """Log probabilities of the model itself, before any penalty or filter."""
        total = mx.logsumexp(logits.astype(mx.float32), axis=-1, keepdims=True)
        chosen = mx.take_along_axis(logits, tokens[:, None], axis=-1).astype(mx.float32) - total
        if self._top == 0:
            return chosen[:, 0], None, None
        values, ids = top_candidates(logits, self._top)
        return chosen[:, 0], ids, values - total


class _Group:
    """Rows that look at the same number of candidates: 0 for greedy rows, the vocabulary's size for all of it."""

    def __init__(self, rows: Rows[Row], sampled: Rows[int], members: list[int], size: int) -> None:
        self.members = members
        self._whole = len(members) == len(rows)
        self._index = mx.array(members)
        self._size = size
        settings = [rows[index].sampling for index in members]
        self._numbers = _Numbers([rows[index].seed for index in members])
        self.seek([sampled[index] for index in members])
        self._colder = 1 / _column([max(s.temperature, 1e-5) for s in settings])
        self._top_k = _behind([s.top_k for s in settings], size) if any(0 < s.top_k < size for s in settings) else None
        self._typical = _column([s.typical_p for s in settings]) if any(s.typical_p < 1 for s in settings) else None
        self._top_p = _column([_share(s.top_p) for s in settings]) if any(s.top_p < 1 for s in settings) else None
        self._min_p = (
            mx.log(_column([max(s.min_p, 1e-30) for s in settings])) if any(s.min_p > 0 for s in settings) else None
        )
        self.mirostat = Mirostat.of([rows[index] for index in members])

    def seek(self, sampled: Rows[int]) -> None:
        """`drawn` by member."""
        self._numbers.seek(sampled)

    def __call__(self, logits: mx.array) -> mx.array:
        if not self._whole:
            logits = logits[self._index]
        if self._size == 0:
            return mx.argmax(logits, axis=-1)
        values, ids = top_candidates(logits, self._size)
        plain = self._filter(values) * self._colder
        if self.mirostat is None:
            place = self._place(plain)
        else:
            left = self.mirostat.filter(values * self._colder, plain)
            place = self._place(left)
            self.mirostat.learn(left, place)
        return mx.take_along_axis(ids, place, axis=-1)[:, 0]

    def _filter(self, values: mx.array) -> mx.array:
        """The candidates [R, K], largest first, -inf for those that go. Each filter sees what the last one left."""
        if self._top_k is not None:
            values = values + self._top_k
        if self._typical is not None:
            values = _typical(values, self._typical)
        if self._top_p is not None:
            before = mx.cumsum(mx.softmax(values, axis=-1), axis=-1, inclusive=False)
            values = mx.where(before < self._top_p, values, -mx.inf)
        if self._min_p is not None:
            best = mx.max(values, axis=-1, keepdims=True)
            values = mx.where(values >= best + self._min_p, values, -mx.inf)
        return values

    def _place(self, values: mx.array) -> mx.array:
        """Rank [R, 1] that each row's random number falls on; `values` are logits, -inf where filtered out."""
        total = mx.cumsum(mx.softmax(values, axis=-1), axis=-1)
        # Scaled by the last sum, which rounding keeps from being exactly 1: the number always falls on a candidate.
        return mx.argmax(total > self._numbers.next() * total[:, -1:], axis=-1, keepdims=True)


def top_candidates(logits: mx.array, count: int) -> tuple[mx.array, mx.array]:
    """The `count` largest values of each row, float32, largest first, and their ids: both [R, count].

    Sorting a vocabulary costs more than a small model's whole step. Each of the `count` largest lies in one of the
    `count` blocks with the largest maxima, so only the maxima and then the blocks that win are sorted. Exact.
    """
    rows, vocabulary = logits.shape
    count = min(count, vocabulary)
    block = 1 << max(round(np.log2(max(vocabulary / count, 1)) / 2), 3)
    if count * block * 4 > vocabulary:
        ids = mx.argsort(logits, axis=-1)[:, : -count - 1 : -1]
        return mx.take_along_axis(logits, ids, axis=-1).astype(mx.float32), ids
    if vocabulary % block:
        logits = mx.pad(logits, [(0, 0), (0, -vocabulary % block)], constant_values=-mx.inf)
    blocks = logits.reshape(rows, -1, block)
    losers = blocks.shape[1] - count
    winners = mx.argpartition(blocks.max(axis=-1), kth=losers, axis=-1)[:, losers:]
    finalists = mx.take_along_axis(blocks, winners[..., None], axis=1).reshape(rows, -1)
    ids = (winners[..., None] * block + mx.arange(block, dtype=winners.dtype)).reshape(rows, -1)
    order = mx.argsort(finalists, axis=-1)[:, : -count - 1 : -1]
    return (
        mx.take_along_axis(finalists, order, axis=-1).astype(mx.float32),
        mx.take_along_axis(ids, order, axis=-1),
    )


def _typical(values: mx.array, share: mx.array) -> mx.array:
    """Keep the candidates whose surprise is closest to the expected one, up to `share` of the probability."""
    probability = mx.softmax(values, axis=-1)
    surprise = -mx.log(mx.maximum(probability, 1e-30))
    expected = (probability * surprise).sum(axis=-1, keepdims=True)
    order = mx.argsort(mx.where(values > -mx.inf, mx.abs(surprise - expected), mx.inf), axis=-1)
    before = mx.cumsum(mx.take_along_axis(probability, order, axis=-1), axis=-1, inclusive=False)
    stays = mx.take_along_axis((before < share) | (share >= 1), mx.argsort(order, axis=-1), axis=-1)
    return mx.where(stays, values, -mx.inf)


def _behind(top_k: list[int], size: int) -> mx.array:
    """[R, K] to add to the candidates: 0 for the first top_k of each row, -inf behind."""
    counts = np.array([[count if count > 0 else size] for count in top_k])
    return mx.array(np.where(np.arange(size) < counts, 0.0, -np.inf).astype(np.float32))


def _share(top_p: float) -> float:
    """`top_p` as a bound on the probability before a candidate: the first always stays, and 1 keeps all."""
    return 2.0 if top_p >= 1 else max(top_p, 1e-9)


def _split(settings: list[Sampling], vocabulary: int) -> list[tuple[int, list[int]]]:
    """Rows by the number of candidates they need; nothing where all are greedy."""
    groups: dict[int, list[int]] = {}
    for index, row in enumerate(settings):
        groups.setdefault(_candidates(row, vocabulary), []).append(index)
    return [] if set(groups) <= {0} else sorted(groups.items())


def _candidates(row: Sampling, vocabulary: int) -> int:
    if row.temperature <= 0:
        return 0
    if row.top_k <= 0 or row.mirostat:
        return vocabulary
    return min(next((size for size in NARROW_SIZES if row.top_k <= size), vocabulary), vocabulary)


def _bias(settings: list[Sampling], vocabulary: int) -> mx.array | None:
    if not any(row.logit_bias for row in settings):
        return None
    table = np.zeros((len(settings), vocabulary), np.float32)
    for index, row in enumerate(settings):
        for token, value in row.logit_bias.items():
            if 0 <= token < vocabulary:
                table[index, token] = value
    return mx.array(table)


def _column(values: list[float] | list[int], dtype: Any = mx.float32) -> mx.array:
    return mx.array(values, dtype=dtype)[:, None]


def _inverse(order: list[int]) -> mx.array:
    return mx.array(np.argsort(np.array(order, np.int32), kind="stable").astype(np.int32))


class _Numbers:
    """Each row's stream of random numbers, made on the host a block ahead and read on the device one column a step."""

    def __init__(self, seeds: list[int]) -> None:
        self._seeds = np.array([seed & 0xFFFFFFFFFFFFFFFF for seed in seeds], np.uint64)
        self.seek([0] * len(seeds))

    def seek(self, sampled: Rows[int]) -> None:
        """The next numbers are number `drawn[i]` of stream i."""
        self._drawn = np.array(sampled, np.uint64)
        self._block: mx.array | None = None
        self._column = 0

    def next(self) -> mx.array:
        """[R, 1] numbers in [0, 1)."""
        if self._block is None or self._column == _NUMBERS:
            self._block = mx.array(uniform(self._seeds, self._drawn, _NUMBERS))
            self._drawn += np.uint64(_NUMBERS)
            self._column = 0
        column = self._block[:, self._column : self._column + 1]
        self._column += 1
        return column


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def uniform(seeds: NDArray[np.uint64], first: NDArray[np.uint64], count: int) -> NDArray[np.float32]:
    """Numbers `first` … `first + count - 1` of each seed's stream, [len(seeds), count] in [0, 1): SplitMix64."""
    with np.errstate(over="ignore"):
        state = _mix(seeds + _GOLDEN)[:, None]
        steps = first[:, None] + np.arange(1, count + 1, dtype=np.uint64)
        bits = _mix((state + steps * _GOLDEN).astype(np.uint64))
    return ((bits >> np.uint64(40)).astype(np.float32) / np.float32(1 << 24)).astype(np.float32)


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
