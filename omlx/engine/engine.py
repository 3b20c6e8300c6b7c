"""The engine: continuous batching over one model. It owns the sequences; one thread calls it and owns MLX.

A step reads as the loop of this server: drop who left, admit who waits, launch a decode step for every running row,
handle the tokens of the step before while the device works, and spend the rest of the time on prompts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from itertools import islice

import mlx.core as mx
from omlx_cache.store import PrefixStore

from omlx.engine.batch import Batch
from omlx.engine.batches import Batches
from omlx.engine.decode_loop import DecodeLoop
from omlx.engine.detokenize import TextStream, TokenTexts
from omlx.engine.draft.speculative import speculator_for
from omlx.engine.followers import Followers
from omlx.engine.grammar import GrammarCompiler
from omlx.engine.guide import make_guide
from omlx.engine.holding import Holding
from omlx.engine.loader import LoadedModel
from omlx.engine.pacing import Presence, presence
from omlx.engine.prefill_loop import PrefillLoop
from omlx.engine.ranks import SOLO, Orders, Ranks
from omlx.engine.replies import Replies
from omlx.engine.requests import grammar_errors
from omlx.engine.scheduler import WaitingLine
from omlx.engine.sequence import EngineError, Output, Sequence, SequenceSpec, shift
from omlx.engine.vision.media import PromptMedia
from omlx.messages.constraint import Grammar
from omlx.messages.context import effective_context
from omlx.messages.failures import running_failed
from omlx.messages.load_spec import EngineConfig
from omlx.messages.request import FailureKind, Limits, Sampling

log = logging.getLogger(__name__)

_CLEAR_EVERY = 256
"""Steps between giving freed buffers back to the system."""
_LOOK_AHEAD = 2
"""Waiting sequences whose prefixes are read from disk before it is their turn."""


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
        self._model = model
        self._config = config
        self._store = store = store if store is not None and store.enabled else None
        self._waiting = WaitingLine()
        self._logged_plan = ""
        self._cancelled: set[int] = set()
        self._ended: set[int] = set()
        self._known: dict[int, Sequence] = {}
        self._store_failed = False
        """Its upkeep has failed; said once."""
        gap_s = config.max_decode_gap
        self._ranks = ranks
        self.followers = Followers(ranks)
        self._stopped = False
        self._grammars = GrammarCompiler(model.text_tokenizer, model.vocabulary, model.end_tokens)
        self._replies = Replies(self, TokenTexts(model.text_tokenizer), model.end_tokens)
        self._prompts = PrefillLoop(
            model, self, self._replies, store=store, ranks=ranks, max_gap_s=gap_s, grammar_words=self._grammars.words
        )
        self._batches = Batches(
            lambda: Batch(model.model, model.vocabulary, self._grammars.words, ranks),
            shared=model.can_batch,
            isolated=ranks.size == 1,
            token_bytes=model.kv_bytes_per_token,
            weight_bytes=model.weight_bytes,
        )
        speculator = speculator_for(model, draft, config, ranks, clock)
        self._decoding = DecodeLoop(self, self._replies, self._batches, speculator, alone=ranks.size == 1)
        self.holding = Holding(self._batches, self._prompts, self._decoding, store, self.followers.limit)
        if config.warm_up:
            self.warm_up()

    @property
    def has_work(self) -> bool:
        return bool(self._known) or self.followers.have_orders

    @property
    def running(self) -> int:
        """Sequences being read or decoded."""
        return len(self._known) - len(self._waiting) - self._replies.ended

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def max_batch(self) -> int:
        """Most sequences decoded in one step so far."""
        return self._decoding.max_batch

    @property
    def decode_steps(self) -> int:
        """Steps so far that decoded."""
        return self._decoding.steps

    @property
    def decoded_rows(self) -> int:
        """Sequences of all those steps: how full they were."""
        return self._decoding.rows

    @property
    def tokens_read(self) -> int:
        """Prompt tokens computed so far, of all sequences."""
        return self._prompts.tokens

    @property
    def tokens_generated(self) -> int:
        """Tokens sampled so far, of all sequences."""
        return self._replies.tokens

    def add(self, spec: SequenceSpec) -> None:
        """Queue a sequence. Raises EngineError where it can never run: nothing of it is kept then."""
        if spec.id in self._known:
            raise EngineError("internal", f"request {spec.id} is already running")
        vocabulary = self._model.vocabulary
        if spec.tokens and not 0 <= min(spec.tokens) <= max(spec.tokens) < vocabulary:
            raise EngineError("invalid", f"the prompt holds a token outside the vocabulary of {vocabulary}")
        context = effective_context(spec.limits.num_ctx, self._config.context_length, self._model.max_context)
        with grammar_errors():
            tokenizer, ends = self._model.text_tokenizer, self._model.end_tokens
            guide = make_guide(self._grammars, tokenizer, ends, spec.grammar, spec.thinking)
        text = TextStream(self._model.text_tokenizer, spec.tokens, spec.limits.stop)
        sequence = Sequence(spec, context=context, text=text, guide=guide, now_ns=time.monotonic_ns())
        self._known[spec.id] = sequence
        self._waiting.push(sequence)
        self.followers.add(spec, sequence.seed)

    def is_compiled(self, grammar: Grammar) -> bool:
        """Whether `add` need not wait for a grammar. May be called by any thread. Raises EngineError."""
        with grammar_errors():
            return self._grammars.is_compiled(grammar)

    def compile(self, grammar: Grammar, check: Callable[[], None] = lambda: None) -> None:
        """Get a grammar ready, so that `add` need not wait for it. May be called by any thread; calls `check` now and
        then, which may raise to give up. Raises EngineError."""
        with grammar_errors():
            self._grammars.matcher(grammar, check)

    def expect(self, tokens: list[int], media: PromptMedia | None = None) -> None:
        """A prompt that will be added soon, but not yet: what it wants of the prefix store is read from disk."""
        if self._store is not None:
            self._store.read_ahead(tokens, media.keys if media is not None else ())

    def cancel(self, id: int) -> None:
        """End a sequence at the next step, in whatever phase it is; nothing more is said about it."""
        if id in self._known:
            self._cancelled.add(id)
            self.followers.cancel(id)

    def end(self, id: int) -> None:
        """Finish a sequence at the next step, as if its reply ended there by itself; its last output tells so."""
        if id in self._known:
            self._ended.add(id)
            self.followers.end(id)

    def rest(self) -> None:
        """Wait until the device has finished the launched steps; a pause follows."""
        mx.synchronize()
        self._prompts.budget.idle()

    @property
    def presence(self) -> Presence:
        """The classes that have requests here."""
        full = self.running >= self._config.max_concurrent_requests
        blocked = full and any(sequence.spec.priority == "interactive" for sequence in self._waiting)
        return presence(self._known.values(), blocked=blocked)

    def step(self) -> list[Output]:
        """One iteration. Returns what it has to say, at most a few outputs per sequence.

        What is left to do for replies that have ended is done in the next one: nobody waits for it.
        """
        self._let_go()
        self._obey(self.followers.exchange())
        outputs = self._drop_leavers()
        if self._stopped:
            return outputs
        self.holding.take_out()
        outputs += self._admit()
        outputs += self._decoding.step(self._prompts.budget, running=self.running)
        outputs += self._prompts.step(decoding=bool(self._batches))
        outputs += self._join_batches()
        self._count_step()
        return outputs

    def warm_up(self) -> None:
        """Run a few made-up sequences, so that what is compiled on first use is compiled before a user waits for it.

        On CUDA the first join, leave, padded step and sampled step take seconds; on a CPU there is little to gain.
        """
        most = effective_context(0, self._config.context_length, self._model.max_context) - 1
        for row, sampling in enumerate((Sampling(temperature=0), Sampling(seed=1), Sampling(seed=2), Sampling(seed=3))):
            tokens = [0] * min(24 + 8 * (row % 3), most)
            limits = Limits(num_predict=4 + 3 * row)
            self.add(SequenceSpec(id=-1 - row, tokens=tokens, sampling=sampling, limits=limits))
        while self.has_work:
            self.step()
        self.steps = 0
        self._decoding.forget_counts()
        self._prompts.tokens = self._replies.tokens = 0
        self._prompts.calibrate()
        mx.clear_cache()

    def close(self) -> None:
        """Drop all sequences and let the device finish. The process may exit cleanly only after this."""
        self._known.clear()
        self._batches.clear()
        self._prompts.line.clear()
        self.holding.clear()
        self._waiting = WaitingLine()
        mx.synchronize()
        if self._store is not None:
            self._store.close()
        mx.clear_streams()

    @property
    def guesses(self) -> tuple[int, int] | None:
        """Tokens guessed so far and how many were right; None: no speculation."""
        speculator = self._decoding.speculator
        return None if speculator is None else (speculator.guessed, speculator.accepted)

    # ---------------------------------------------------------------- several ranks
    def follow(self) -> None:
        """Do what the leader's engine does, until it stops. For ranks other than 0."""
        while not self._stopped:
            self.step()

    def stop_followers(self) -> None:
        """Let the other ranks leave `follow`; no step comes after this. What the last one has left is done."""
        self._let_go()
        self.followers.stop()

    def _obey(self, orders: Orders) -> None:
        """Do what the leader has done since the last step."""
        for spec in orders.add:
            self.add(spec)
        for id in orders.cancel:
            self.cancel(id)
        for id in orders.end:
            self.end(id)
        if orders.limits is not None:
            self.holding.limit(orders.limits)
        if orders.held is not None:
            self.holding.hold(frozenset(orders.held))
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
            self.forget(gone)
        ended, self._ended = self._ended, set()
        now = time.monotonic_ns()
        leaving = [self._known[id] for id in sorted(ended) if id in self._known]
        for sequence in leaving:
            try:
                outputs.append(self._replies.finish(sequence, Output(id=sequence.id), "stop", now))
            except Exception as error:
                outputs += self.fail([sequence], error)
        if leaving:
            self._let_go()
        return outputs

    def forget(self, ids: set[int]) -> None:
        """Remove sequences from wherever they are."""
        self._waiting.remove(ids)
        self._prompts.remove(ids)
        self.holding.forget(ids)
        self._leave_batches(ids)
        for id in ids:
            sequence = self._known.pop(id, None)
            if sequence is not None:
                sequence.phase = "done"
                sequence.cache = sequence.capture = None

    def find(self, ids: list[int]) -> list[Sequence]:
        """Those of these sequences that are still there, in whatever phase."""
        return [self._known[id] for id in ids if id in self._known]

    def _leave_batches(self, ids: set[int]) -> None:
        """Take rows out of the batches; others that lose theirs by it are computed again."""
        for sequence in self._batches.leave(ids):
            self._prompts.restart(sequence)

    def restart(self, sequence: Sequence) -> None:
        """Take a sequence out of its batch, if it is in any, and compute it again from all its tokens."""
        self._leave_batches({sequence.id})
        self._prompts.restart(sequence)

    def _admit(self) -> list[Output]:
        outputs: list[Output] = []
        while self.running < self._config.max_concurrent_requests:
            sequence = self._waiting.pop(self._may_begin)
            if sequence is None:
                return outputs
            sequence.started_ns = time.monotonic_ns()
            log.debug(
                "[%s] admitted: %d prompt tokens, class %s, %d running",
                sequence.spec.trace, len(sequence.tokens), sequence.spec.priority, self.running,
            )  # fmt: skip
            try:
                self._prompts.admit(sequence)
            except Exception as error:
                outputs += self.fail([sequence], error)
        for sequence in islice(self._waiting, _LOOK_AHEAD):
            self._prompts.prefill.expect(sequence)
        return outputs

    def _may_begin(self, sequence: Sequence) -> bool:
        return self.holding.fits(sequence, (other for other in self._known.values() if other.started_ns))

    # ---------------------------------------------------------------- the end of replies
    def _let_go(self) -> None:
        """Take finished sequences out of their batches, and those whose context is full back to the prompt reader."""
        finished = self._replies.take_finished()
        shifting = self._replies.take_shifting()
        if finished and self._store is not None:
            self._batches.capture(self._store, finished)
        if finished:
            self.forget({sequence.id for sequence in finished})
        for sequence in shifting:
            sequence.tokens = shift(sequence.tokens, sequence.spec.limits, sequence.context)
            self.restart(sequence)

    def fail_forward(self, sequences: list[Sequence], error: Exception) -> list[Output]:
        """A forward raised: of this process alone, as far as it knows, so a group of ranks cannot go on."""
        if self._ranks.size > 1:
            self._ranks.abort(error)
        return self.fail(sequences, error)

    def fail(self, sequences: list[Sequence], error: Exception) -> list[Output]:
        log.error("request(s) %s failed", ", ".join(one.spec.trace or "?" for one in sequences), exc_info=error)
        alive = [sequence for sequence in sequences if sequence.phase != "done"]
        failure: tuple[FailureKind, str] = ("internal", running_failed(error))
        self.forget({sequence.id for sequence in sequences})
        return [Output(id=sequence.id, failure=failure) for sequence in alive]

    def _join_batches(self) -> list[Output]:
        """Take the sequences whose prompts are read into batches."""
        outputs: list[Output] = []
        for sequence, error in self._batches.join([*self._prompts.take_newcomers(), *self.holding.take_back()]):
            outputs += self.fail_forward([sequence], error)
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
        plan = f"{len(self._waiting)} waiting, {len(self._prompts.line)} prefilling, decoding in batches of {batches}"
        if plan != self._logged_plan:
            self._logged_plan = plan
            log.debug("step %d: %s", self.steps, plan)
