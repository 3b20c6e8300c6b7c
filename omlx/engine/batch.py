"""The rows that are decoded together, as tensors. No policy and no text: the engine decides who joins and who leaves.

`pending` are samples that the device is still computing (or has computed) and the host has not read. The next
forward needs their tokens only on the device, so it is launched first and the host reads and handles them while it
runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence as Rows
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from omlx.engine import caches
from omlx.engine.capture_rows import RowPlace
from omlx.engine.guide import Bits
from omlx.engine.ranks import Ranks
from omlx.engine.sampling import Sample, Sampler
from omlx.engine.sequence import Sequence
from omlx.engine.tensors import launch


class Pending(NamedTuple):
    """A sample that is not read yet and the sequences it belongs to, in order; None for those that have left since."""

    sample: Sample
    sequences: Rows[Sequence | None]


class Newcomers(NamedTuple):
    """Sequences that join a batch: their caches, as one part for `caches.join`, and the tokens in each.

    `sample` is that of their first tokens [n]; None: the caches lack the prompts' last tokens, whose forward is the
    next decode step.
    """

    sequences: list[Sequence]
    cache: caches.Caches
    lengths: list[int]
    sample: Sample | None = None

    @property
    def tokens(self) -> mx.array:
        """[n] the newest token of each, which is not in the cache."""
        if self.sample is not None:
            return self.sample.tokens
        return mx.array([sequence.tokens[-1] for sequence in self.sequences], dtype=mx.int32)

    def apart(self) -> list[Newcomers]:
        """Each by itself."""
        if len(self.sequences) == 1:
            return [self]
        return [
            Newcomers([sequence], caches.row(self.cache, self.lengths, row), [self.lengths[row]])
            for row, sequence in enumerate(self.sequences)
        ]

    def without(self, gone: set[int]) -> Newcomers | None:
        """Without the sequences that have these ids; None where no other is left."""
        keep = [row for row, sequence in enumerate(self.sequences) if sequence.id not in gone]
        if len(keep) == len(self.sequences):
            return self
        if not keep:
            return None
        lengths = [self.lengths[row] for row in keep]
        return Newcomers([self.sequences[row] for row in keep], caches.leave(self.cache, self.lengths, keep), lengths)


class Batch:
    """Sequences in decode. `lengths[i]` counts the tokens that row i's cache holds."""

    def __init__(self, model: Any, vocabulary: int, grammar_words: int, ranks: Ranks) -> None:
        self._model = model
        self._ranks = ranks
        self._vocabulary = vocabulary
        self._words = grammar_words
        self.rows: list[Sequence] = []
        self.lengths: list[int] = []
        self.pending: list[Pending] = []
        self.held: caches.Caches = []
        """The rows' caches; who looks at them changes nothing, and keeps nothing of them."""
        self.tokens: mx.array = mx.zeros((0,), dtype=mx.int32)
        """[B] each row's newest token: in no cache yet, and maybe not computed yet."""
        self._sampler: Sampler | None = None
        self._undrawn: mx.array | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def constrained(self) -> bool:
        """Some row's next mask needs its last token, so this step cannot be sampled before the last one is read."""
        return any(row.guide is not None and row.guide.constrains for row in self.rows)

    @property
    def unread(self) -> int:
        """Samples of all rows that the host has not read."""
        return sum(len(pending.sequences) for pending in self.pending)

    def join(self, newcomers: list[Newcomers]) -> None:
        """Take in sequences whose prompts have been read. Where it raises, the batch is as it was."""
        self._forget_sampler()
        parts = [(self.held, self.lengths)] if self.rows else []
        joined = caches.join(parts + [(new.cache, new.lengths) for new in newcomers])
        self.tokens = mx.concatenate([self.tokens, *(new.tokens for new in newcomers)])
        self.held = joined
        for new in newcomers:
            self.rows = self.rows + new.sequences
            self.lengths = self.lengths + new.lengths
        self.pending += [Pending(new.sample, new.sequences) for new in newcomers if new.sample is not None]

    def leave(self, gone: set[int]) -> None:
        """Drop the rows of the sequences with these ids. Where it raises, the batch must be taken apart."""
        places = {place for place, row in enumerate(self.rows) if row.id in gone}
        if not places:
            return
        self._forget_sampler()
        self.pending = [
            Pending(sample, [None if row is None or row.id in gone else row for row in rows])
            for sample, rows in self.pending
        ]
        keep = caches.compacted(len(self.rows), places)
        if keep:
            self.held = caches.leave(self.held, self.lengths, keep)
            index = mx.array(keep)
            self.tokens = self.tokens[index]
            if self._undrawn is not None:
                self._undrawn = self._undrawn[index]
        else:
            self.held, self.tokens, self.pending = [], mx.zeros((0,), dtype=mx.int32), []
            self._undrawn = None
        self.rows = [self.rows[place] for place in keep]
        self.lengths = [self.lengths[place] for place in keep]

    def parts(self, ids: set[int]) -> list[Newcomers]:
        """The rows of the sequences with these ids as they are now, to join again later; the batch is unchanged.

        A row with several unread samples (of a draft's round) is left out: it can be had after a plain step.
        """
        found = []
        for at, row in enumerate(self.rows):
            if row.id not in ids:
                continue
            unread = [
                (pending.sample, place)
                for pending in self.pending
                for place, sequence in enumerate(pending.sequences)
                if sequence is row
            ]
            if len(unread) > 1 or self._undrawn is not None:
                continue
            sample = unread[0][0].row(unread[0][1]) if unread else None
            found.append(Newcomers([row], caches.row(self.held, self.lengths, at), [self.lengths[at]], sample))
        return found

    def places_of(self, sequences: list[Sequence]) -> list[RowPlace]:
        """Where these lie in `held`, with the tokens that are sure to be theirs."""
        end, places = caches.end_of(self.held, self.lengths), []
        for sequence in sequences:
            row = self.rows.index(sequence)
            # Guesses of a draft beyond the reply's end are left out.
            length = min(self.lengths[row], len(sequence.tokens))
            places.append(RowPlace(sequence, row, end - self.lengths[row], length))
        return places

    def forward(self, tokens: mx.array) -> mx.array:
        """Run `tokens` [B, n] through the model: logits [B, n, V]; the caches hold them then."""
        count = tokens.shape[1]
        caches.make_room(self.held, count)
        logits: mx.array = self._model(tokens, cache=self.held, **self._positions(count))
        self.lengths = [length + count for length in self.lengths]
        caches.advance(self.held, count)
        return logits

    def _positions(self, count: int) -> dict[str, mx.array]:
        """[3, B, n], where a row has pictures behind which positions are not the places of its tokens in the cache."""
        if not any(row.delta for row in self.rows):
            return {}
        first = mx.array([length + row.delta for length, row in zip(self.lengths, self.rows, strict=True)])
        places = first[:, None] + mx.arange(count)[None]
        return {"positions": mx.broadcast_to(places, (3, *places.shape))}

    def rewind(self, count: int) -> None:
        """Take the last `count` tokens of every row back out of the caches (`caches.can_trim`)."""
        caches.trim(self.held, count)
        self.lengths = [length - count for length in self.lengths]

    def put(self, sample: Sample, sequences: Rows[Sequence]) -> None:
        """Take in samples of a lone row that were made elsewhere; the last is its newest token."""
        self._forget_sampler()
        self.tokens = sample.tokens[-1:]
        self.pending.append(Pending(sample, sequences))

    def step(self) -> list[Pending]:
        """Launch the next step of every row. Returns the samples of the last one, to be read while it runs.

        Where it raises, those samples are still good, but the caches are not.
        """
        unread, self.pending = self.pending, []
        logits = self.forward(self.tokens[:, None])[:, -1, :]
        if self.constrained:
            launch(logits)
            self._undrawn = logits
        else:
            self._sample(logits, None, unread)
        return unread

    def settle(self) -> None:
        """Call when the samples that `step` returned are handled: constrained rows could not be sampled before."""
        if self._undrawn is not None:
            logits, self._undrawn = self._undrawn, None
            self._sample(logits, grammar_masks(self.rows, logits, self._words), [])

    def _sample(self, logits: mx.array, mask: mx.array | None, unread: list[Pending]) -> None:
        """Choose every row's next token. `unread` are samples that are not in the rows' records yet."""
        inputs: mx.array | None = self.tokens
        if self._sampler is None:
            unknown = [sum(pending.sequences.count(row) for pending in unread) for row in self.rows]
            sampled = [row.generated + count for row, count in zip(self.rows, unknown, strict=True)]
            self._sampler = Sampler(self.rows, sampled, self._vocabulary)
            inputs = _unless_known(self.tokens, unknown)
        sample = self._sampler(logits, inputs, mask)
        sample = sample._replace(tokens=self._ranks.share(sample.tokens))
        self.tokens = sample.tokens
        launch(*sample.arrays())
        self.pending.append(Pending(sample, self.rows))

    def close(self) -> None:
        """The batch is given up: hand its rows what their samplers keep, as far as that can still be had."""
        with contextlib.suppress(Exception):
            self._forget_sampler()

    def _forget_sampler(self) -> None:
        if self._sampler is not None:
            self._sampler.close(self.rows)
            self._sampler = None


def _unless_known(tokens: mx.array, unknown: list[int]) -> mx.array | None:
    """`tokens` [B], -1 for rows whose record holds theirs (`unknown` 0); None where all do."""
    if all(unknown):
        return tokens
    return mx.where(mx.array(unknown) > 0, tokens, -1) if any(unknown) else None


def grammar_masks(rows: list[Sequence], logits: mx.array, words: int) -> mx.array | None:
    """[B, V], true for allowed tokens; rows without an active guide allow all. None where there is none.

    `logits` [B, V] decide for a reply that may begin outside its grammar: it does where that is what it wants most.
    """
    active = [(index, row.guide) for index, row in enumerate(rows) if row.guide is not None and row.guide.active]
    if not active:
        return None
    bits: Bits = np.full((len(rows), words), 0xFFFFFFFF, np.uint32)
    for index, guide in active:
        if rows[index].phase != "done":
            guide.mask_into(bits[index])
    vocabulary = logits.shape[-1]
    unpacked = (mx.array(bits)[..., None] >> mx.arange(32, dtype=mx.uint32)) & 1
    mask = unpacked.reshape(len(rows), -1)[:, :vocabulary] == 1
    choices = {index: guide.choice for index, guide in active if guide.choice is not None}
    if choices:
        wanted = mx.array([choices.get(index, -1) for index in range(len(rows))])[:, None]
        frees = mx.argmax(logits, axis=-1, keepdims=True) == wanted
        mask = mx.where(frees, mx.arange(vocabulary) == wanted, mask)
    return mask
