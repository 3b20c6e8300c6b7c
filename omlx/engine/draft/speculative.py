"""Speculative decoding: a small *draft* model guesses the next tokens of a lone sequence, and the model checks them.

A *round* is some guesses, one after the other, and one forward of the model over all of them. Each position is
sampled as without a draft (from the model's own logits, with the random number that belongs to it), and a guess
counts where it is what was sampled. So the reply is the one of plain decoding, greedy or sampled; a bad draft costs
time and nothing else.

Only a sequence that runs alone is worth it (a full batch keeps the device busy anyway), and only while rounds are
measured to be faster than plain steps (`omlx.engine.draft.controller`). Only full-attention caches can take tokens
back, and only samples that depend on nothing but their logits can be made side by side: no penalties, no mirostat,
no grammar. A draft sees no pictures. Everything else takes the plain step. Between two steps of the engine no round
is in flight, so a sequence that joins finds a batch like any other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

import mlx.core as mx

from omlx.engine import caches
from omlx.engine.batch import Batch, Pending
from omlx.engine.draft.controller import SpeculationController
from omlx.engine.latency import LatencyModel
from omlx.engine.loader import LoadedModel, load_model
from omlx.engine.sampling import Sample, Sampler, draws_alone
from omlx.engine.sequence import Sequence
from omlx.engine.tensors import launch, read
from omlx.messages.failures import LoadError
from omlx.messages.load_spec import LoadSpec

log = logging.getLogger(__name__)

_BEHIND = 16
"""Tokens that the draft may lack and reads together with its first guess; more are read before, beside plain steps."""
_ALIKE = 0.99
"""Share of the token texts that must agree: makers rename a few reserved ones."""


def open_draft(spec: LoadSpec, model: LoadedModel, *, processes: int = 1, measure: bool = True) -> LoadedModel | None:
    """The draft model that `spec` names, loaded; None where there is none or `model` cannot use one (the log says why).

    Raises LoadError where it cannot be loaded, or does not speak the tokens of `model`.
    """
    if spec.draft_path is None:
        return None
    if processes > 1:
        log.warning("the draft model is not used: this model is spread over several processes")
        return None
    draft = _load(spec, spec.draft_path, model, measure=measure) if _can_trim(model) else None
    if draft is None or not _can_trim(draft):
        log.warning("the draft model is not used: guesses need plain full-attention caches, in both models")
        return None
    return draft


def _can_trim(model: LoadedModel) -> bool:
    return caches.can_trim(caches.new(model.model))


def _load(spec: LoadSpec, path: str, model: LoadedModel, *, measure: bool) -> LoadedModel:
    draft = load_model(
        LoadSpec(
            name=f"the draft model of {spec.name}",
            path=path,
            fingerprint="",
            engine=spec.engine,
            weights=spec.weights,
            trust_remote_code=spec.trust_remote_code,
        ),
        measure=measure,
    )
    ours, theirs = (one.text_tokenizer.get_vocab(with_added_tokens=True) for one in (model, draft))
    agreeing = sum(theirs.get(text) == token for text, token in ours.items())
    if agreeing < _ALIKE * max(len(ours), len(theirs)):
        raise LoadError(
            f"the draft model of {spec.name} has another vocabulary ({agreeing} of {len(ours)} tokens agree): "
            "a draft must come from the same family of models"
        )
    return draft


class _Round(NamedTuple):
    """Guesses and the model's own samples, launched together; `base` tokens were in the caches before."""

    batch: Batch
    base: int
    guesses: mx.array
    """[k]"""
    sample: Sample
    """Of k + 1 positions."""


class Speculator:
    """Runs rounds on batches of one, with a `draft` that `open_draft` has let through.

    `max_gap_s`: how long the draft may read at a stretch to catch up. `clock`: seconds, to time steps with.
    """

    def __init__(
        self, model: LoadedModel, draft: LoadedModel, max_gap_s: float, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.guessed = self.accepted = 0
        """Tokens that the draft has guessed so far, and how many of them were right."""
        self._model = model
        self._draft = draft
        self._width = min(model.vocabulary, draft.vocabulary)
        self._chunk = LatencyModel(draft.step_s, draft.token_s).within(max_gap_s)
        self._cache = caches.new(draft.model)
        self._held: list[int] = []
        """Tokens in the draft's cache."""
        self._followed: list[int] | None = None
        """The list of tokens that they are known to begin."""
        self._samplers: tuple[Sequence, int, Sampler, Sampler] | None = None
        self._round: _Round | None = None
        self._plain = False
        """A plain step of a lone sequence is under way, and nothing beside it."""
        self._controller = SpeculationController(draft.step_s + model.token_s, clock)

    def step(self, batch: Batch) -> list[Pending] | None:
        """Launch a round: the samples of the last step, to be read while it runs. None: take a plain step instead."""
        if self._round is not None:
            self.forget()  # something went wrong in the last round
        row = batch.rows[0]
        unread = batch.unread
        if row.tokens is not self._followed:
            self._follow(row.tokens)
        count = self._guesses(row, unread)
        self._plain = not count
        if not count or not self._catch_up(row.tokens):
            return None
        draft_sampler, sampler = self._samplers_for(row, count, row.generated + unread)
        # Several unread samples are the last round's, and known; a single one may not be computed yet.
        ahead = [token for pending in batch.pending for token in read(pending.sample.tokens)][:-1] if unread > 1 else []
        start = len(self._held)
        behind = row.tokens[start:] + ahead[max(start - len(row.tokens), 0) :]
        self._held += behind
        base = batch.lengths[0]
        tokens = mx.concatenate([mx.array(behind, dtype=mx.int32), batch.tokens]) if behind else batch.tokens
        rounds: list[mx.array] = []
        for _ in range(count):
            logits = self._draft.model(tokens[None], cache=self._cache)[:, -1, : self._width]
            tokens = draft_sampler(logits).tokens
            launch(tokens)
            rounds.append(tokens)
        guesses = mx.concatenate(rounds)
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
            self._plain = False
            return
        self._round = None
        count = round.guesses.shape[0]
        if not batch.rows or batch.rows[0].phase == "done":
            caches.trim(self._cache, count)
            return
        guesses, tokens = read(round.guesses), read(round.sample.tokens)
        right = next((index for index in range(count) if guesses[index] != tokens[index]), count)
        self.guessed, self.accepted = self.guessed + count, self.accepted + right
        self._controller.round(count, right)
        batch.rewind(count - right)
        # The draft has read its own guesses but the last.
        kept = [batch.rows[0].tokens[round.base], *tokens[:right]][:count]
        caches.trim(self._cache, count - len(kept))
        self._held += kept
        batch.put(round.sample.first(right + 1), [batch.rows[0]] * (right + 1))

    def forget(self) -> None:
        """Drop what the draft has read, after an error."""
        self._cache, self._held, self._followed, self._round = caches.new(self._draft.model), [], None, None

    def _guesses(self, row: Sequence, unread: int) -> int:
        """How many tokens to guess now; 0: none."""
        if row.guide is not None or row.spec.media is not None or not draws_alone(row):
            return 0
        room = min(row.context - len(row.tokens), row.max_new - row.generated) - unread
        return self._controller.guesses(row.spec.limits.draft_num_predict, room - 1)

    def _follow(self, tokens: list[int]) -> None:
        """From now on guess what comes behind `tokens`, which grow with the reply."""
        same = _common(self._held, tokens)
        caches.trim(self._cache, len(self._held) - same)
        del self._held[same:]
        self._followed = tokens
        self._controller.start()

    def _catch_up(self, tokens: list[int]) -> bool:
        """Let the draft read what it lacks, a chunk per step; True once it is close behind."""
        start = len(self._held)
        if len(tokens) - start <= _BEHIND:
            return True
        chunk = tokens[start : start + self._chunk]
        self._draft.model(mx.array(chunk, dtype=mx.int32)[None], cache=self._cache)
        launch(*caches.arrays(self._cache))
        self._held += chunk
        return False

    def _samplers_for(self, row: Sequence, count: int, sampled: int) -> tuple[Sampler, Sampler]:
        """The draft's, for one position after the other, and the model's, for all at once; both begin at `drawn`."""
        if self._samplers is None or self._samplers[:2] != (row, count):
            rows = [row] * (count + 1)
            self._samplers = (
                row,
                count,
                Sampler([row], [sampled], self._width),
                Sampler(rows, [sampled + index for index in range(count + 1)], self._model.vocabulary),
            )
        _, _, draft_sampler, sampler = self._samplers
        draft_sampler.seek([sampled])
        sampler.seek([sampled + index for index in range(count + 1)])
        return draft_sampler, sampler


def _common(first: list[int], second: list[int]) -> int:
    """Length of the common beginning."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(first), len(second)))
