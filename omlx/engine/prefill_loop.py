"""The prompts' part of a step: which are prefilled, alone or together, until they can be decoded.

`scheduler.plan` decides; here it is carried out. Several ranks carry out the leader's plan.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from functools import partial

import mlx.core as mx
from omlx_cache.store import PrefixStore

from omlx.engine import caches
from omlx.engine.batch import Newcomers, grammar_masks
from omlx.engine.latency import PrefillChunks
from omlx.engine.loader import LoadedModel
from omlx.engine.prefill import Prefill
from omlx.engine.prefill_budget import PrefillBudget
from omlx.engine.prefix_dedup import PrefixDedup
from omlx.engine.ranks import Ranks
from omlx.engine.replies import Replies
from omlx.engine.requests import Requests
from omlx.engine.sampling import Sample, Sampler
from omlx.engine.scheduler import (
    Candidate,
    Chunk,
    FairShare,
    PlannedForward,
    PrefillState,
    StepPlan,
    choose_together,
    plan,
    readable_now,
)
from omlx.engine.sequence import Output, Sequence
from omlx.engine.tensors import launch
from omlx.messages.request import FinishReason, Priority

log = logging.getLogger(__name__)

_REPORT_PROMPTS = 256
"""Prompts shorter than this report no reading progress."""


class PrefillLoop:
    """Prefills the prompts in `line`. `grammar_words`: of a mask over the vocabulary."""

    def __init__(
        self,
        model: LoadedModel,
        requests: Requests,
        replies: Replies,
        *,
        store: PrefixStore | None,
        ranks: Ranks,
        max_gap_s: float,
        grammar_words: int,
    ) -> None:
        self.line: list[Sequence] = []
        """In order of their arrival."""
        self.tokens = 0
        """Computed so far, of all prompts."""
        self.held: frozenset[Priority] = frozenset()
        self.lower_part = 1.0
        """Both as in `PrefillState`."""
        self.prefill = Prefill(
            model.model, logits_rows=model.logits_rows, store=store, ranks=ranks, vision=model.vision
        )
        self._model = model
        self._requests = requests
        self._replies = replies
        self._store = store
        self._ranks = ranks
        self._words = grammar_words
        self._max_gap_s = max_gap_s
        self._newcomers: list[Newcomers] = []
        self._share = FairShare()
        self._turn = 0
        self._dedup = PrefixDedup(store.block_size) if store is not None else None
        self._empty = caches.new(model.model)
        """What a row's caches are, to be asked what they allow."""
        self.calibrate()

    def calibrate(self) -> None:
        """Forget what was measured since the load."""
        step_s, token_s, largest = self._model.step_s, self._model.token_s, self._model.measured_tokens
        self.budget = PrefillBudget(
            step_s=step_s, fixed_s=step_s, token_s=token_s, largest=largest, max_gap_s=self._max_gap_s
        )

    # ---------------------------------------------------------------- the line
    def admit(self, sequence: Sequence) -> None:
        """Take a sequence into the line; what it wants of the prefix store is read from disk."""
        self.line.append(sequence)
        if self._dedup is not None:
            self._dedup.attach(sequence, self.line[:-1])
        self.prefill.expect(sequence)

    def remove(self, ids: set[int]) -> None:
        self.line = [sequence for sequence in self.line if sequence.id not in ids]
        self._drop_newcomers(ids)

    def _drop_newcomers(self, ids: set[int]) -> None:
        left = (newcomers.without(ids) for newcomers in self._newcomers)
        self._newcomers = [newcomers for newcomers in left if newcomers is not None]

    def restart(self, sequence: Sequence) -> None:
        """Compute a sequence again from all its tokens; it is in no batch any more."""
        self._drop_newcomers({sequence.id})
        sequence.restart()
        if sequence not in self.line:
            self.line.append(sequence)

    def take_newcomers(self) -> list[Newcomers]:
        """Sequences that can be decoded from now on."""
        newcomers, self._newcomers = self._newcomers, []
        return newcomers

    # ---------------------------------------------------------------- a step
    def step(self, *, decoding: bool) -> list[Output]:
        """Carry out the plan of this step. `decoding`: other sequences are decoded meanwhile."""
        if not self.line:
            if not decoding:
                self.budget.idle()
            return []
        outputs: list[Output] = []
        launched_before = self.prefill.take_launched()
        planned = self._ranks.decide(lambda: plan(self._state(decoding), self.budget), StepPlan)
        spent = PrefillChunks()
        for forward in planned.forwards:
            sequence = next((sequence for sequence in self.line if sequence.id == forward.id), None)
            if sequence is None:  # More of it was restored than could be known, or it has failed.
                continue
            self._turn += 1
            self._share.choose([sequence.spec.priority])
            spent = spent.plus(self._run(sequence, forward, outputs, decoding=decoding), owing=not forward.eager)
            if (self._newcomers and not decoding) or (spent.owing and decoding):
                break  # the first token of all is not kept waiting for other prompts, nor decodes for a long one
        for ids, failure in self.prefill.catch_up(launched_before):
            outputs += self._recover(self._requests.find(ids), failure)
        self.budget.read(spent, decoding=decoding)
        if self._store is not None and spent.tokens >= _REPORT_PROMPTS:
            # What reading costs decides whether the store fetches a prefix from disk or lets it be computed again.
            self._store.note_prefill(spent.tokens, self.budget.cost(spent))
        return outputs

    def _state(self, decoding: bool) -> PrefillState:
        together = self._model.can_prefill_together and self._ranks.size == 1
        padding = partial(_padding, self._empty) if together else None
        return PrefillState(
            tuple(self._candidates()),
            decoding,
            self._turn,
            self._share,
            padding,
            self._model.logits_rows,
            self.held,
            self.lower_part,
        )

    def _candidates(self) -> Iterator[Candidate]:
        """Prompts that wait for no other which begins alike."""
        for sequence in self.line:
            if self._dedup is None or not self._dedup.waits(sequence, self.line):
                yield _candidate(sequence)

    def _run(self, sequence: Sequence, forward: PlannedForward, outputs: list[Output], *, decoding: bool) -> int:
        """Prefill a chunk of a prompt, with chunks of others where that is possible. Returns the tokens it costs."""
        together = [(sequence, 0)]
        try:
            if sequence.phase == "waiting":
                self.prefill.start(sequence)
            together = self._companions(sequence, forward, decoding)
            if len(together) == 1 and together[0][1]:
                return self._run_alone(sequence, forward.tokens, outputs, decoding=decoding)
            counts = [(one, count) for one, count in together if count]
            newcomers = self.prefill.advance_together(counts) if counts else None
        except Exception as error:
            outputs += self._recover([one for one, _ in together], error)
            return 0
        ready = [newcomers] if newcomers is not None else []
        for one, count in together:
            last = one.remaining == 1
            self._count(one, count + last, one.position + last, outputs)
            if last:
                self.line.remove(one)
            if last and not count:
                assert one.cache is not None
                ready.append(Newcomers([one], one.cache, [one.position]))
        for several in ready:
            self._start_decoding(several, outputs)
        return len(counts) * max((count for _, count in counts), default=0)

    def _run_alone(self, sequence: Sequence, budget: int, outputs: list[Output], *, decoding: bool) -> int:
        count, logits = self.prefill.advance(sequence, budget, decoding=decoding)
        self._count(sequence, count, sequence.position, outputs)
        if logits is not None:
            self.line.remove(sequence)
            assert sequence.cache is not None
            newcomer = Newcomers([sequence], sequence.cache, [sequence.position])
            self._start_decoding(newcomer._replace(sample=self._first_sample(sequence, logits)), outputs)
        return count

    def _count(self, sequence: Sequence, count: int, position: int, outputs: list[Output]) -> None:
        self._share.charge(sequence.spec.priority, count)
        self.tokens += count
        if sequence.generated == 0 and sequence.prompt_length >= _REPORT_PROMPTS:
            outputs.append(Output(id=sequence.id, progress=(position, sequence.prompt_length)))

    def _companions(self, first: Sequence, forward: PlannedForward, decoding: bool) -> list[tuple[Sequence, int]]:
        """The started sequence `first` and those to prefill with it, each with its tokens; 0: only its last is left."""
        if not self._model.can_prefill_together or self._ranks.size > 1 or not _may_share(first):
            return [(first, 0 if _only_last(first) and _may_share(first) else first.remaining)]
        if first.remaining == 1:
            return [(first, 0 if _only_last(first) else 1)]
        known = {first.id: first}
        done: list[tuple[Sequence, int]] = []

        def chunks() -> Iterator[Chunk]:
            for other in self._alike(first, forward.eager, decoding):
                if other.phase == "waiting":
                    self.prefill.start(other)
                if other.remaining == 1:
                    done.extend([(other, 0)] if _only_last(other) else [])
                    continue
                known[other.id] = other
                yield Chunk(other.id, self.prefill.chunk(other, forward.tokens), other.position == 0)

        own = Chunk(first.id, self.prefill.chunk(first, forward.tokens), first.position == 0)
        chosen = choose_together(own, chunks(), forward.together, padding=partial(_padding, self._empty))
        return [*((known[id], count) for id, count in chosen.items()), *done]

    def _alike(self, first: Sequence, eager: bool, decoding: bool) -> list[Sequence]:
        """Others that may be prefilled now, of the same class and as eager."""
        line, least = [*self._candidates()], self.budget.eager_tokens
        eagerness = {candidate.id: candidate.computed < least for candidate in line}
        found = {
            candidate.id
            for candidate in readable_now(line, eagerness, decoding=decoding, owes=self.budget.owes)
            if candidate.shares and candidate.priority == first.spec.priority and eagerness[candidate.id] == eager
        }
        return [sequence for sequence in self.line if sequence.id in found and sequence is not first]

    # ---------------------------------------------------------------- the end of a prompt
    def _first_sample(self, sequence: Sequence, logits: mx.array) -> Sample | None:
        """Of the first token, from the prompt's own `logits` [1, V]."""
        if sequence.max_new == 0:
            return None
        sampler = Sampler([sequence], [sequence.generated], self._model.vocabulary)
        sampled: Sample = sampler(logits, None, grammar_masks([sequence], logits, self._words))
        sample = sampled._replace(tokens=self._ranks.share(sampled.tokens))
        sampler.close([sequence])
        launch(*sample.arrays())
        return sample

    def _start_decoding(self, newcomers: Newcomers, outputs: list[Output]) -> None:
        """Prompts are read: their sequences join a batch at the end of the step, unless they want nothing more."""
        for sequence in newcomers.sequences:
            sequence.cache = None
            if sequence.max_new > 0:
                sequence.phase = "decode"
                continue
            now = sequence.first_token_ns = time.monotonic_ns()
            # As in Ollama, nobody was cut off who asked for nothing; a prompt that fills the context was.
            reason: FinishReason = "stop" if sequence.spec.limits.num_predict == 0 else "length"
            outputs.append(self._replies.finish(sequence, Output(id=sequence.id), reason, now))
        left = newcomers.without({sequence.id for sequence in newcomers.sequences if sequence.max_new == 0})
        if left is not None:
            self._newcomers.append(left)

    def _recover(self, sequences: list[Sequence], error: Exception) -> list[Output]:
        """A forward over prompts has raised. A lone one is the cause; of several, each is computed again by itself."""
        if len(sequences) == 1 or self._ranks.size > 1:
            return self._requests.fail_forward(sequences, error)
        log.warning(
            "the prefill of %d requests failed: each is computed again by itself", len(sequences), exc_info=error
        )
        for sequence in sequences:
            if sequence.phase != "done":
                sequence.alone = True
                self._requests.restart(sequence)
        return []


def _candidate(sequence: Sequence) -> Candidate:
    return Candidate(
        sequence.id,
        sequence.remaining,
        sequence.position - sequence.cached_tokens,
        sequence.spec.priority,
        ready=sequence.phase != "waiting" or sequence.is_at_hand,
        fresh=sequence.position == 0,
        shares=_may_share(sequence),
    )


def _padding(empty: caches.Caches, fresh: bool) -> bool | None:
    return caches.padding(empty, fresh=fresh)


def _only_last(sequence: Sequence) -> bool:
    """Whether its caches hold all of its prompt but the last token. Empty caches cannot be joined to others."""
    return sequence.remaining == 1 and sequence.position > 0


def _may_share(sequence: Sequence) -> bool:
    """Whether its prompt may be prefilled with others."""
    return not sequence.alone and sequence.spec.media is None
