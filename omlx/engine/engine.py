"""The engine: continuous batching over one model. It owns the sequences; one thread calls it and owns MLX.

A step reads as the loop of this server: drop who left, admit who waits, launch a decode step for every running row,
handle the tokens of the step before while the device works, and spend the rest of the time on prompts.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import TypeVar

import mlx.core as mx
import msgspec
from omlx_cache.store import PrefixStore

from omlx.engine import caches
from omlx.engine.batch import Batch, Newcomers, Pending, grammar_masks
from omlx.engine.batches import Batches
from omlx.engine.capture_rows import finished as capture_finished
from omlx.engine.detokenize import TextStream, TokenTexts
from omlx.engine.draft.speculative import Speculator
from omlx.engine.grammar import GrammarCompiler, GrammarError
from omlx.engine.guide import make_guide
from omlx.engine.loader import LoadedModel
from omlx.engine.logprobs import LogprobCollector
from omlx.engine.prefill import Prefill
from omlx.engine.prefill_budget import PrefillBudget, PrefillChunks
from omlx.engine.prefix_dedup import PrefixDedup
from omlx.engine.ranks import SOLO, Orders, Ranks
from omlx.engine.sampling import Sample, Sampler
from omlx.engine.scheduler import Chunk, FairShare, WaitingLine, choose_together, next_prefill
from omlx.engine.sequence import EngineError, Output, Sequence, SequenceSpec, shift
from omlx.engine.tensors import launch, read
from omlx.engine.vision.media import PromptMedia
from omlx.messages.constraint import Grammar
from omlx.messages.context import effective_context
from omlx.messages.failures import running_failed
from omlx.messages.load_spec import EngineConfig
from omlx.messages.request import FailureKind, FinishReason, Limits, Sampling

log = logging.getLogger(__name__)
T = TypeVar("T")

_CLEAR_EVERY = 256
"""Steps between giving freed buffers back to the system."""
_REPORT_PROMPTS = 256
"""Prompts shorter than this report no reading progress."""
_LOOK_AHEAD = 2
"""Waiting sequences whose prefixes are read from disk before it is their turn."""
_NO_ORDERS = Orders()


class Engine:
    """Runs sequences on `model`; `store` keeps their prefixes (None: no prefix caching), `draft` guesses their tokens.

    With `ranks`, this is one of several processes that each hold a share of the model: only the leader's engine is
    called from outside, the others `follow` it. `clock`, in seconds, times what guesses cost.
    """

    def __init__(
        self,
        model: LoadedModel,
        config: EngineConfig,
        store: PrefixStore | None = None,
        ranks: Ranks = SOLO,
        draft: LoadedModel | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.steps = 0
        """Steps so far; a growing number means progress."""
        self.max_batch = 0
        """Most sequences decoded in one step so far."""
        self.decode_steps = self.decoded_rows = 0
        """Steps that decoded, and the sequences of all of them: how full they were."""
        self.tokens_read = self.tokens_generated = 0
        """Prompt tokens computed and tokens sampled so far, of all sequences."""
        self._model = model
        self._config = config
        self._store = store = store if store is not None and store.enabled else None
        self._waiting = WaitingLine()
        self._prefilling: list[Sequence] = []
        self._logged_plan = ""
        self._cancelled: set[int] = set()
        self._ended: set[int] = set()
        self._known: dict[int, Sequence] = {}
        self._finished: list[Sequence] = []
        self._shifting: list[Sequence] = []
        self._newcomers: list[Newcomers] = []
        self._turn = 0
        self._store_failed = False
        """Its upkeep has failed; said once."""
        self._share = FairShare()
        gap_s = config.max_decode_gap
        self._budget = _calibrated(model, gap_s)
        self._ranks = ranks
        self._orders = Orders()
        """For the followers, with the next step."""
        self._stopped = False
        self._prefix_dedup = PrefixDedup(store.block_size) if store is not None else None
        self._prefill = Prefill(
            model.model, logits_rows=model.logits_rows, store=store, ranks=ranks, vision=model.vision
        )
        self._empty = caches.new(model.model)
        """What a row's caches are, to be asked what they allow."""
        self._grammars = GrammarCompiler(model.text_tokenizer, model.vocabulary, model.end_tokens)
        self._texts = TokenTexts(model.text_tokenizer)
        self._batches = Batches(
            lambda: Batch(model.model, model.vocabulary, self._grammars.words, ranks),
            shared=model.can_batch,
            isolated=ranks.size == 1,
            token_bytes=model.kv_bytes_per_token,
            weight_bytes=model.weight_bytes,
        )
        self._speculator = Speculator(model, draft, gap_s, clock) if draft is not None else None
        if config.warm_up:
            self.warm_up()

    # ---------------------------------------------------------------- the surface
    @property
    def has_work(self) -> bool:
        return bool(self._known) or self._orders != _NO_ORDERS

    @property
    def running(self) -> int:
        """Sequences being read or decoded."""
        return len(self._known) - len(self._waiting)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def add(self, spec: SequenceSpec) -> None:
        """Queue a sequence. Raises EngineError where it can never run: nothing of it is kept then."""
        if spec.id in self._known:
            raise EngineError("internal", f"request {spec.id} is already running")
        vocabulary = self._model.vocabulary
        if spec.tokens and not 0 <= min(spec.tokens) <= max(spec.tokens) < vocabulary:
            raise EngineError("invalid", f"the prompt holds a token outside the vocabulary of {vocabulary}")
        context = effective_context(spec.limits.num_ctx, self._config.context_length, self._model.max_context)
        try:
            tokenizer, ends = self._model.text_tokenizer, self._model.end_tokens
            guide = make_guide(self._grammars, tokenizer, ends, spec.grammar, spec.thinking)
        except GrammarError as error:
            raise EngineError(*_unusable(error)) from error
        text = TextStream(self._model.text_tokenizer, spec.tokens, spec.limits.stop)
        sequence = Sequence(spec, context=context, text=text, guide=guide, now_ns=time.monotonic_ns())
        self._known[spec.id] = sequence
        self._waiting.push(sequence)
        if self._leads:
            sampling = msgspec.structs.replace(spec.sampling, seed=sequence.seed)
            self._orders.add.append(msgspec.structs.replace(spec, sampling=sampling))

    def compile(self, grammar: Grammar) -> None:
        """Get a grammar ready, so that `add` need not wait for it. May be called by any thread. Raises EngineError."""
        try:
            self._grammars.matcher(grammar)
        except GrammarError as error:
            raise EngineError(*_unusable(error)) from error

    def expect(self, tokens: list[int], media: PromptMedia | None = None) -> None:
        """A prompt that will be added soon, but not yet: what it wants of the prefix store is read from disk."""
        if self._store is not None:
            self._store.read_ahead(tokens, media.keys if media is not None else ())

    def cancel(self, id: int) -> None:
        """End a sequence at the next step, in whatever phase it is; nothing more is said about it."""
        if id in self._known:
            self._cancelled.add(id)
            if self._leads:
                self._orders.cancel.append(id)

    def end(self, id: int) -> None:
        """Finish a sequence at the next step, as if its reply ended there by itself; its last output tells so."""
        if id in self._known:
            self._ended.add(id)
            if self._leads:
                self._orders.end.append(id)

    def step(self) -> list[Output]:
        """One iteration. Returns what it has to say, at most a few outputs per sequence.

        What is left to do for replies that have ended is done in the next one: nobody waits for it.
        """
        self._let_go()
        self._take_orders()
        outputs = self._drop_leavers()
        if self._stopped:
            return outputs
        outputs += self._admit()
        outputs += self._decode()
        outputs += self._read_prompts()
        self._count_step()
        return outputs

    def warm_up(self) -> None:
        """Run a few made-up sequences, so that what is compiled on first use is compiled before a user waits for it.

        On CUDA the first join, leave, padded step and sampled step take seconds; on a CPU there is little to gain.
        """
        most = effective_context(0, self._config.context_length, self._model.max_context) - 1
        for at, sampling in enumerate((Sampling(temperature=0), Sampling(seed=1), Sampling(seed=2), Sampling(seed=3))):
            tokens = [0] * min(24 + 8 * (at % 3), most)
            limits = Limits(num_predict=4 + 3 * at)
            self.add(SequenceSpec(id=-1 - at, tokens=tokens, sampling=sampling, limits=limits))
        while self.has_work:
            self.step()
        self.steps = self.max_batch = self.decode_steps = self.decoded_rows = 0
        self.tokens_read = self.tokens_generated = 0
        self._budget = _calibrated(self._model, self._config.max_decode_gap)
        mx.clear_cache()

    def close(self) -> None:
        """Drop all sequences and let the device finish. The process may exit cleanly only after this."""
        self._known.clear()
        self._batches.clear()
        self._prefilling.clear()
        self._waiting = WaitingLine()
        mx.synchronize()
        if self._store is not None:
            self._store.close()
        mx.clear_streams()

    @property
    def guesses(self) -> tuple[int, int] | None:
        """Tokens that the draft model has guessed so far and how many were right; None: no draft model is in use."""
        return None if self._speculator is None else (self._speculator.guessed, self._speculator.accepted)

    # ---------------------------------------------------------------- several ranks
    @property
    def _leads(self) -> bool:
        return self._ranks.size > 1 and self._ranks.rank == 0

    def follow(self) -> None:
        """Do what the leader's engine does, until it stops. For ranks other than 0."""
        while not self._stopped:
            self.step()

    def stop_followers(self) -> None:
        """Let the other ranks leave `follow`; no step comes after this. What the last one has left is done."""
        self._let_go()
        if self._leads:
            self._ranks.expect_end()
            self._ranks.decide(lambda: Orders(stop=True), Orders)

    def tell_followers(self, *, hot_bytes: int | None = None, clear_store: bool = False) -> None:
        """Have the stores of the other ranks follow what was done to this one; nothing to do without other ranks."""
        if self._leads:
            self._orders.hot_bytes = hot_bytes if hot_bytes is not None else self._orders.hot_bytes
            self._orders.clear_store |= clear_store

    def _take_orders(self) -> None:
        """Tell the followers what came in since the last step, or hear it."""
        if self._ranks.size == 1:
            return
        orders, self._orders = self._orders, Orders()
        orders = self._ranks.decide(lambda: orders, Orders)
        if not self._leads:
            for spec in orders.add:
                self.add(spec)
            for id in orders.cancel:
                self.cancel(id)
            for id in orders.end:
                self.end(id)
            if self._store is not None and orders.hot_bytes is not None:
                self._store.resize_hot(orders.hot_bytes)
            if self._store is not None and orders.clear_store:
                self._store.clear()
            self._stopped = orders.stop

    # ---------------------------------------------------------------- leaving and admitting
    def _drop_leavers(self) -> list[Output]:
        """Cancelled sequences go silently, ended ones with what they have."""
        outputs: list[Output] = []
        gone, self._cancelled = self._cancelled, set()
        if gone:
            self._forget(gone)
        ended, self._ended = self._ended, set()
        now = time.monotonic_ns()
        leaving = [self._known[id] for id in sorted(ended) if id in self._known]
        for sequence in leaving:
            try:
                outputs.append(self._finish(sequence, Output(id=sequence.id), "stop", now))
            except Exception as error:
                outputs += self._fail([sequence], error)
        if leaving:
            self._let_go()
        return outputs

    def _forget(self, ids: set[int]) -> None:
        """Remove sequences from wherever they are."""
        self._waiting.remove(ids)
        self._prefilling = [sequence for sequence in self._prefilling if sequence.id not in ids]
        self._leave_batches(ids)
        self._drop_newcomers(ids)
        for id in ids:
            sequence = self._known.pop(id, None)
            if sequence is not None:
                sequence.phase = "done"
                sequence.cache = sequence.capture = None

    def _drop_newcomers(self, ids: set[int]) -> None:
        left = (newcomers.without(ids) for newcomers in self._newcomers)
        self._newcomers = [newcomers for newcomers in left if newcomers is not None]

    def _leave_batches(self, ids: set[int]) -> None:
        """Take rows out of the batches; others that lose theirs by it are computed again."""
        for sequence in self._batches.leave(ids):
            self._restart(sequence)

    def _restart(self, sequence: Sequence) -> None:
        """Compute a sequence again that is in no batch any more, from all its tokens."""
        sequence.restart()
        if sequence not in self._prefilling:
            self._prefilling.append(sequence)

    def _admit(self) -> list[Output]:
        outputs: list[Output] = []
        while self.running < self._config.max_concurrent_requests:
            sequence = self._waiting.pop(lambda _: True)
            if sequence is None:
                return outputs
            sequence.started_ns = time.monotonic_ns()
            log.debug(
                "[%s] admitted: %d prompt tokens, class %s, %d running",
                sequence.spec.trace, len(sequence.tokens), sequence.spec.priority, self.running,
            )  # fmt: skip
            self._prefilling.append(sequence)
            try:
                if self._prefix_dedup is not None:
                    self._prefix_dedup.attach(sequence, self._prefilling[:-1])
                self._prefill.expect(sequence)
            except Exception as error:
                outputs += self._fail([sequence], error)
        for sequence in islice(self._waiting, _LOOK_AHEAD):
            self._prefill.expect(sequence)
        return outputs

    # ---------------------------------------------------------------- decoding
    def _decode(self) -> list[Output]:
        """Launch the next step of every batch, then handle the samples of the one before."""
        outputs: list[Output] = []
        launched: list[tuple[Batch, list[Pending]]] = []
        for batch in self._batches:
            self.max_batch = max(self.max_batch, len(batch))
            unread = batch.pending
            try:
                launched.append((batch, self._launch(batch)))
            except Exception as error:
                outputs += self._recover(batch, unread, error)
        for batch, unread in launched:
            try:
                outputs += self._handle(unread)
                if batch in self._batches:
                    batch.settle()
                    if self._speculator is not None:
                        self._speculate(self._speculator.settle, batch)
            except Exception as error:
                outputs += self._recover(batch, [], error)
        if launched:
            rows = sum(len(batch) for batch, _ in launched)
            self.decode_steps += 1
            self.decoded_rows += rows
            self._budget.decoded(rows)
        return outputs

    def _launch(self, batch: Batch) -> list[Pending]:
        """The next step of a batch: with the draft model's help where it helps, else plain."""
        if self._speculator is not None and self.running == 1 == len(batch) and batch.pending:
            unread = self._speculate(self._speculator.step, batch)
            if unread is not None:
                return unread
        return batch.step()

    def _speculate(self, act: Callable[[Batch], T], batch: Batch) -> T:
        try:
            return act(batch)
        except Exception as error:
            log.warning("generating with the draft model failed; replies go on without it")
            self._speculator = None
            raise _DraftError from error

    def _recover(self, batch: Batch, unread: list[Pending], error: Exception) -> list[Output]:
        """A step of a batch has raised, and its caches are lost. `unread` are samples from before.

        A lone row is the cause and gets the error; of several, each is computed again by itself.
        """
        if self._ranks.size > 1 or (len(batch) == 1 and not isinstance(error, _DraftError)):
            return self._fail_forward([*batch.rows], error)
        log.warning("a step of %d requests failed: each is computed again by itself", len(batch), exc_info=error)
        rows = self._batches.take_apart(batch)
        outputs: list[Output] = []
        # Samples that cannot be read are made again: what a row samples depends on its seed and position only.
        with contextlib.suppress(Exception):
            outputs = self._handle(unread)
        for row in rows:
            if row.phase != "done":
                self._restart(row)
        return outputs

    def _handle(self, unread: list[Pending]) -> list[Output]:
        """Read samples and take their tokens into the sequences. An error in one row's host work ends it alone."""
        outputs: list[Output] = []
        for sample, sequences in unread:
            tokens: list[int] = read(sample.tokens)
            report = LogprobCollector(sample, self._texts) if sample.logprobs is not None else None
            now = time.monotonic_ns()
            for at, (sequence, token) in enumerate(zip(sequences, tokens, strict=True)):
                if sequence is None or sequence.phase == "done":
                    continue
                try:
                    output = self._take(sequence, token, now)
                    if report is not None and sequence.wants_logprobs is not None:
                        output.logprobs = [report.of(at, token, sequence.wants_logprobs)]
                    outputs.append(output)
                except GrammarError as error:
                    self._forget({sequence.id})
                    outputs.append(Output(id=sequence.id, failure=_unusable(error)))
                except Exception as error:
                    outputs += self._fail([sequence], error)
        return outputs

    def _take(self, sequence: Sequence, token: int, now: int) -> Output:
        """One more token of a sequence: its text, and whether it was the last."""
        sequence.accept(token, now)
        self.tokens_generated += 1
        output = Output(id=sequence.id, tokens=[token])
        if token in self._model.end_tokens:
            output.stop_token = token
            return self._finish(sequence, output, "stop", now)
        output.text, output.stop_string = sequence.text.feed(token)
        if sequence.guide is not None:
            sequence.guide.accept(token, output.text)
        if output.stop_string or (sequence.guide is not None and sequence.guide.complete):
            return self._finish(sequence, output, "stop", now)
        if sequence.generated >= sequence.max_new:
            return self._finish(sequence, output, "length", now)
        if len(sequence.tokens) >= sequence.context:
            if not _may_shift(sequence):
                return self._finish(sequence, output, "length", now)
            self._shifting.append(sequence)
        return output

    def _finish(self, sequence: Sequence, output: Output, reason: FinishReason, now: int) -> Output:
        output.text += sequence.text.flush()
        output.finish, output.usage = reason, sequence.usage(now)
        self._finished.append(sequence)
        sequence.phase = "done"
        return output

    def _let_go(self) -> None:
        """Take finished sequences out of their batches, and those whose context is full back to the prompt reader."""
        finished, self._finished = self._finished, []
        shifting, self._shifting = [item for item in self._shifting if item.phase != "done"], []
        self._capture_ends(finished)
        if finished:
            self._forget({sequence.id for sequence in finished})
        for sequence in shifting:
            self._leave_batches({sequence.id})
            sequence.tokens = shift(sequence.tokens, sequence.spec.limits, sequence.context)
            self._restart(sequence)

    def _capture_ends(self, finished: list[Sequence]) -> None:
        """Hand the whole of finished sequences' caches to the store. Where that fails, they are not stored."""
        if self._store is None:
            return
        for batch in self._batches:
            rows = [sequence for sequence in finished if sequence in batch.rows]
            try:
                capture_finished(self._store, batch.held, batch.places_of(rows))
            except Exception:
                log.warning("the contexts of finished requests could not be stored", exc_info=True)

    def _fail_forward(self, sequences: list[Sequence], error: Exception) -> list[Output]:
        """A forward raised: of this process alone, as far as it knows, so a group of ranks cannot go on."""
        if self._ranks.size > 1:
            self._ranks.abort(error)
        return self._fail(sequences, error)

    def _fail(self, sequences: list[Sequence], error: Exception) -> list[Output]:
        log.error("request(s) %s failed", ", ".join(one.spec.trace or "?" for one in sequences), exc_info=error)
        alive = [sequence for sequence in sequences if sequence.phase != "done"]
        failure: tuple[FailureKind, str] = ("internal", running_failed(error))
        self._forget({sequence.id for sequence in sequences})
        return [Output(id=sequence.id, failure=failure) for sequence in alive]

    # ---------------------------------------------------------------- prompts
    def _read_prompts(self) -> list[Output]:
        """Spend this step's budget on prompts; one that is read to its end joins a batch."""
        if not self._prefilling:
            if not self._batches:
                self._budget.idle()
            return []
        outputs: list[Output] = []
        launched_before = self._prefill.take_launched()
        decoding = bool(self._batches)
        hurry = any(map(self._is_eager, self._prefilling))
        seconds = self._budget.seconds(decoding=decoding, eager=hurry)
        read = PrefillChunks()
        while True:
            choose = partial(self._next_chunk, decoding, self._budget.left(seconds, read))
            id, budget, forward, eager = self._ranks.decide(choose, tuple[int, int, int, bool])
            if not budget:
                break
            read = read.plus(self._read_chunk(self._known[id], budget, forward, outputs), owing=not eager)
            if (self._newcomers and not decoding) or (read.owing and decoding):
                break  # the first token of all is not kept waiting for other prompts, nor decodes for a long one
        for ids, failure in self._prefill.catch_up(launched_before):
            outputs += self._recover_prefill([self._known[id] for id in ids if id in self._known], failure)
        outputs += self._join_batches()
        self._budget.read(read, decoding=decoding)
        if self._store is not None and read.tokens >= _REPORT_PROMPTS:
            # What reading costs decides whether the store fetches a prefix from disk or lets it be computed again.
            self._store.note_prefill(read.tokens, self._budget.cost(read))
        return outputs

    def _next_chunk(self, decoding: bool, seconds: float) -> tuple[int, int, int, bool]:
        """Whose prompt is read next, at most how many tokens of it (0: enough for this step), how many tokens a forward
        may have with those of others, and whether it is eager."""
        line = self._readable(decoding)
        if not line or seconds <= 0:
            return (0, 0, 0, False)
        sequence = next_prefill(line, self._share, self._turn)
        self._turn += 1
        tokens, forward = self._budget.tokens(seconds), self._budget.forward_tokens(seconds)
        return sequence.id, tokens, forward, self._is_eager(sequence)

    def _readable(self, decoding: bool) -> list[Sequence]:
        """Prompts that may be read now: while decodes are owed time, only those in their first tokens.

        One that is still on its way from disk waits while there is anything else to do.
        """
        line = self._prefilling
        if self._prefix_dedup is not None:
            line = [sequence for sequence in line if not self._prefix_dedup.waits(sequence, self._prefilling)]
        if decoding and self._budget.owes:
            line = [*filter(self._is_eager, line)]
        ready = [sequence for sequence in line if sequence.phase != "waiting" or sequence.is_at_hand]
        return ready if ready or decoding else line

    def _is_eager(self, sequence: Sequence) -> bool:
        """Whether its prompt is still in its first tokens that are read, not counting what was restored."""
        return sequence.position - sequence.cached_tokens < self._budget.eager_tokens

    def _read_chunk(self, sequence: Sequence, budget: int, forward: int, outputs: list[Output]) -> int:
        """Prefill a chunk of a prompt, with chunks of others where that is possible. Returns the tokens it costs."""
        together = [(sequence, 0)]
        try:
            if sequence.phase == "waiting":
                self._prefill.start(sequence)
            together = self._companions(sequence, budget, forward)
            if len(together) == 1 and together[0][1]:
                return self._read_alone(sequence, budget, outputs)
            counts = [(one, count) for one, count in together if count]
            newcomers = self._prefill.advance_together(counts) if counts else None
        except Exception as error:
            outputs += self._recover_prefill([one for one, _ in together], error)
            return 0
        ready = [newcomers] if newcomers is not None else []
        for one, count in together:
            last = one.remaining == 1
            self._count_read(one, count + last, one.position + last, outputs)
            if last:
                self._prefilling.remove(one)
            if last and not count:
                assert one.cache is not None
                ready.append(Newcomers([one], one.cache, [one.position]))
        for several in ready:
            self._start_decoding(several, outputs)
        return len(counts) * max((count for _, count in counts), default=0)

    def _read_alone(self, sequence: Sequence, budget: int, outputs: list[Output]) -> int:
        count, logits = self._prefill.advance(sequence, budget, decoding=bool(self._batches))
        self._count_read(sequence, count, sequence.position, outputs)
        if logits is not None:
            self._prefilling.remove(sequence)
            assert sequence.cache is not None
            newcomer = Newcomers([sequence], sequence.cache, [sequence.position])
            self._start_decoding(newcomer._replace(sample=self._first_sample(sequence, logits)), outputs)
        return count

    def _count_read(self, sequence: Sequence, count: int, position: int, outputs: list[Output]) -> None:
        self._share.charge(sequence.spec.priority, count)
        self.tokens_read += count
        if sequence.generated == 0 and sequence.prompt_length >= _REPORT_PROMPTS:
            outputs.append(Output(id=sequence.id, progress=(position, sequence.prompt_length)))

    def _companions(self, first: Sequence, budget: int, forward: int) -> list[tuple[Sequence, int]]:
        """The started sequence `first` and those to prefill with it, each with its tokens; 0: only its last is left."""
        if not self._model.can_prefill_together or self._ranks.size > 1 or not _may_share(first):
            return [(first, 0 if _only_last(first) and _may_share(first) else first.remaining)]
        known = {first.id: first}
        done: list[tuple[Sequence, int]] = []

        def chunks() -> Iterator[Chunk]:
            for other in [*self._readable(bool(self._batches))]:
                if other is first or not _may_share(other) or other.spec.priority != first.spec.priority:
                    continue
                if self._is_eager(other) != self._is_eager(first):
                    continue
                if other.phase == "waiting":
                    self._prefill.start(other)
                if other.remaining == 1:
                    done.extend([(other, 0)] if _only_last(other) else [])
                    continue
                known[other.id] = other
                yield Chunk(other.id, self._prefill.chunk(other, budget), other.position == 0)

        if first.remaining == 1:
            return [(first, 0 if _only_last(first) else 1)]
        own = Chunk(first.id, self._prefill.chunk(first, budget), first.position == 0)
        chosen = choose_together(own, chunks(), forward, padding=self._padding)
        return [*((known[id], count) for id, count in chosen.items()), *done]

    def _padding(self, fresh: bool) -> bool | None:
        return caches.padding(self._empty, fresh=fresh)

    def _recover_prefill(self, sequences: list[Sequence], error: Exception) -> list[Output]:
        """A forward over prompts has raised. A lone one is the cause; of several, each is computed again by itself."""
        if len(sequences) == 1 or self._ranks.size > 1:
            return self._fail_forward(sequences, error)
        log.warning(
            "the prefill of %d requests failed: each is computed again by itself", len(sequences), exc_info=error
        )
        for sequence in sequences:
            if sequence.phase != "done":
                self._leave_batches({sequence.id})
                self._drop_newcomers({sequence.id})
                sequence.alone = True
                self._restart(sequence)
        return []

    def _first_sample(self, sequence: Sequence, logits: mx.array) -> Sample | None:
        """Of the first token, from the prompt's own `logits` [1, V]."""
        if sequence.max_new == 0:
            return None
        sampler = Sampler([sequence], [sequence.generated], self._model.vocabulary)
        sampled: Sample = sampler(logits, None, grammar_masks([sequence], logits, self._grammars.words))
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
            outputs.append(self._finish(sequence, Output(id=sequence.id), reason, now))
        left = newcomers.without({sequence.id for sequence in newcomers.sequences if sequence.max_new == 0})
        if left is not None:
            self._newcomers.append(left)

    def _join_batches(self) -> list[Output]:
        """Take the sequences whose prompts are read into batches."""
        newcomers, self._newcomers = self._newcomers, []
        outputs: list[Output] = []
        for sequence, error in self._batches.join(newcomers):
            outputs += self._fail_forward([sequence], error)
        return outputs

    def _count_step(self) -> None:
        self.steps += 1
        if log.isEnabledFor(logging.DEBUG):
            self._log_plan()
        if self._store is not None:
            self._tick(self._store)
        if self.steps % _CLEAR_EVERY == 0:
            mx.clear_cache()

    def _tick(self, store: PrefixStore) -> None:
        try:
            store.tick()
        except Exception:
            if not self._store_failed:
                log.warning("the prefix store failed in its upkeep", exc_info=True)
            self._store_failed = True

    def _log_plan(self) -> None:
        """Say what the step worked on, where that has changed since the one before."""
        batches = [len(batch) for batch in self._batches]
        plan = f"{len(self._waiting)} waiting, {len(self._prefilling)} prefilling, decoding in batches of {batches}"
        if plan != self._logged_plan:
            self._logged_plan = plan
            log.debug("step %d: %s", self.steps, plan)


class _DraftError(Exception):
    """The draft model has failed, not the sequence."""


def _calibrated(model: LoadedModel, max_gap_s: float) -> PrefillBudget:
    step_s, token_s, largest = model.step_s, model.token_s, model.measured_tokens
    return PrefillBudget(step_s=step_s, fixed_s=step_s, token_s=token_s, largest=largest, max_gap_s=max_gap_s)


def _unusable(error: GrammarError) -> tuple[FailureKind, str]:
    return "invalid", f"the format cannot be used: {error}"


def _only_last(sequence: Sequence) -> bool:
    """Whether its caches hold all of its prompt but the last token. Empty caches cannot be joined to others."""
    return sequence.remaining == 1 and sequence.position > 0


def _may_share(sequence: Sequence) -> bool:
    """Whether its prompt may be prefilled with others."""
    return not sequence.alone and sequence.spec.media is None


def _may_shift(sequence: Sequence) -> bool:
    limits = sequence.spec.limits
    return limits.shift and limits.num_predict != -2 and sequence.spec.media is None
