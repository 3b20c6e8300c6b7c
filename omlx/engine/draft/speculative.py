"""Speculative decoding: a *drafter* guesses the next tokens of a lone sequence, and the model checks them.

A *round* is some guesses and one forward of the model over all of them. Each position is sampled as without guesses
(from the model's own logits, with the random number that belongs to it), and a guess counts where it is what was
sampled. So the reply is the one of plain decoding, greedy or sampled; a bad drafter only costs time.

Only a sequence that runs alone gains from it (a full batch keeps the device busy anyway), and only while rounds are
measured to be faster than plain steps (`omlx.engine.draft.controller`). Only full-attention caches can take tokens
back, and only samples that depend on nothing but their logits can be made side by side: no penalties, no mirostat,
no grammar. A drafter sees no pictures. Everything else takes the plain step. Between two steps of the engine no round
is in flight, so a sequence that joins finds a batch like any other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import mlx.core as mx

from omlx.engine.batch import Batch, Pending
from omlx.engine.draft.controller import MOST_GUESSES, SpeculationController
from omlx.engine.draft.draft_model import DraftModel, can_check
from omlx.engine.draft.drafter import Drafter, Position
from omlx.engine.draft.prompt_lookup import PromptLookup
from omlx.engine.loader import LoadedModel
from omlx.engine.ranks import Ranks
from omlx.engine.sampling import Sample, Sampler, draws_alone
from omlx.engine.sequence import Sequence
from omlx.engine.tensors import launch, read
from omlx.messages.load_spec import EngineConfig


def speculator_for(
    model: LoadedModel, draft: LoadedModel | None, config: EngineConfig, ranks: Ranks, clock: Callable[[], float]
) -> Speculator | None:
    """A speculator with `draft`, or with prompt lookup where there is none; None where neither can be used."""
    if draft is not None:
        return Speculator(model, DraftModel(draft, model, config.max_decode_gap), clock)
    if config.prompt_lookup and ranks.size == 1 and can_check(model):
        return Speculator(model, PromptLookup(), clock)
    return None


class _Round(NamedTuple):
    """Guesses and the model's own samples, launched together; `base` tokens were in the caches before."""

    batch: Batch
    base: int
    guesses: mx.array
    """[k]"""
    sample: Sample
    """Of k + 1 positions."""


class Speculator:
    """Runs rounds on batches of one. `clock`: seconds, to time steps with."""

    def __init__(self, model: LoadedModel, drafter: Drafter, clock: Callable[[], float] = time.perf_counter) -> None:
        self.guessed = self.accepted = 0
        """Tokens that were guessed so far, and how many of them were right."""
        self._vocabulary = model.vocabulary
        self._drafter = drafter
        self._followed: list[int] | None = None
        """The list of tokens that the drafter follows."""
        self._sampler: tuple[Sequence, int, Sampler] | None = None
        self._round: _Round | None = None
        self._all_known = False
        """The unread samples are a round's, which were read to tell which guesses were right."""
        self._plain = False
        """A plain step of a lone sequence is under way, and nothing beside it."""
        self._controller = SpeculationController(drafter.guess_s + model.token_s, clock)

    def step(self, batch: Batch) -> list[Pending] | None:
        """Launch a round: the samples of the last step, to be read while it runs. None: take a plain step instead."""
        if self._round is not None:
            self.forget()  # something went wrong in the last round
        row, unread = batch.rows[0], batch.unread
        if row.tokens is not self._followed:
            self._drafter.follow(row.tokens)
            self._followed = row.tokens
            self._controller.start(anew=self._drafter.by_text)
        all_known, self._all_known = self._all_known or unread > 1, False
        most = self._most_guesses(row, unread)
        self._plain = not most
        if not most or not self._drafter.catch_up(row.tokens):
            return None
        ahead = [token for pending in batch.pending for token in read(pending.sample.tokens)] if all_known else []
        position = Position(row, ahead, batch.tokens, not all_known, row.generated + unread)
        guesses = self._drafter.guess(position, most)
        if guesses is None:
            self._plain = True
            return None
        sampler = self._sampler_for(row, guesses.shape[0], position.sampled)
        base = batch.lengths[0]
        last, batch.pending = batch.pending, []
        logits = batch.forward(mx.concatenate([batch.tokens, guesses])[None])
        sample = sampler(logits[0])
        launch(guesses, *sample.arrays())
        self._round = _Round(batch, base, guesses, sample)
        return last

    def settle(self, batch: Batch) -> None:
        """Call when the samples of a step are handled. After a round: keep the right guesses, take back the rest."""
        round = self._round
        if round is None or round.batch is not batch:
            if self._plain:
                self._controller.plain()
            else:
                self._controller.pause()
            self._plain = self._all_known = False
            return
        self._round = None
        count = round.guesses.shape[0]
        if not batch.rows or batch.rows[0].phase == "done":
            self._drafter.keep([], count)
            return
        guesses, tokens = read(round.guesses), read(round.sample.tokens)
        right = next((index for index in range(count) if guesses[index] != tokens[index]), count)
        self.guessed, self.accepted = self.guessed + count, self.accepted + right
        self._controller.round(count, right)
        batch.rewind(count - right)
        self._drafter.keep([batch.rows[0].tokens[round.base], *tokens[:right]], count)
        batch.put(round.sample.first(right + 1), [batch.rows[0]] * (right + 1))
        self._all_known = True

    def forget(self) -> None:
        """Drop what the drafter has read, after an error."""
        self._drafter.forget()
        self._followed, self._round, self._all_known = None, None, False

    def _most_guesses(self, row: Sequence, unread: int) -> int:
        """How many tokens to guess now; 0: none."""
        if row.guide is not None or row.spec.media is not None or not draws_alone(row):
            return 0
        room = min(row.context - len(row.tokens), row.max_new - row.generated) - unread
        asked = row.spec.limits.draft_num_predict
        return self._controller.guesses(MOST_GUESSES if self._drafter.by_text and asked else asked, room - 1)

    def _sampler_for(self, row: Sequence, count: int, sampled: int) -> Sampler:
        """The model's, for all positions at once; the first begins at `sampled`."""
        places = [sampled + at for at in range(count + 1)]
        if self._sampler is None or self._sampler[:2] != (row, count):
            self._sampler = (row, count, Sampler([row] * (count + 1), places, self._vocabulary))
        sampler = self._sampler[2]
        sampler.seek(places)
        return sampler
