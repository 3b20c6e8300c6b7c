"""The decode part of a step: every batch's next step is launched, then the samples of the one before are handled."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import TypeVar

from omlx.engine.batch import Batch, Pending
from omlx.engine.batches import Batches
from omlx.engine.draft.speculative import Speculator
from omlx.engine.prefill_budget import PrefillBudget
from omlx.engine.replies import Replies
from omlx.engine.requests import Requests
from omlx.engine.sequence import Output

log = logging.getLogger(__name__)
T = TypeVar("T")


class DecodeLoop:
    """Decodes `batches`, with a draft's help where there is a `speculator`. `alone`: in one process, not several ranks.

    A step that fails concerns the rows of its batch only.
    """

    def __init__(
        self, requests: Requests, replies: Replies, batches: Batches, speculator: Speculator | None, *, alone: bool
    ) -> None:
        self.speculator = speculator
        self.speculates = True
        """False: the work limits allow no speculation."""
        self._requests = requests
        self._replies = replies
        self._batches = batches
        self._alone = alone
        self.forget_counts()

    def forget_counts(self) -> None:
        self.max_batch = 0
        """Largest number of sequences in one step so far."""
        self.steps = self.rows = 0
        """Steps so far, and the sequences of all of them."""

    def step(self, budget: PrefillBudget, *, running: int) -> list[Output]:
        """Launch the next step of every batch, then handle the previous samples. Reports the times to `budget`."""
        outputs: list[Output] = []
        launched: list[tuple[Batch, list[Pending]]] = []
        for batch in self._batches:
            self.max_batch = max(self.max_batch, len(batch))
            unread = batch.pending
            try:
                launched.append((batch, self._launch(batch, lone=running == 1)))
            except Exception as error:
                outputs += self._recover(batch, unread, error)
        for batch, unread in launched:
            try:
                outputs += self._replies.handle(unread)
                if batch in self._batches:
                    batch.settle()
                    if self.speculator is not None:
                        self._speculate(self.speculator.settle, batch)
            except Exception as error:
                outputs += self._recover(batch, [], error)
        if launched:
            rows = sum(len(batch) for batch, _ in launched)
            self.steps += 1
            self.rows += rows
            budget.decoded(rows)
        return outputs

    def _launch(self, batch: Batch, *, lone: bool) -> list[Pending]:
        """The next step of a batch: speculative if that is faster, else plain."""
        if self.speculator is not None and self.speculates and lone and len(batch) == 1 and batch.pending:
            unread = self._speculate(self.speculator.step, batch)
            if unread is not None:
                return unread
        return batch.step()

    def _speculate(self, act: Callable[[Batch], T], batch: Batch) -> T:
        try:
            return act(batch)
        except Exception as error:
            log.warning("generating with the draft model failed; replies go on without it")
            self.speculator = None
            raise _DraftError from error

    def _recover(self, batch: Batch, unread: list[Pending], error: Exception) -> list[Output]:
        """A step of a batch has raised, and its caches are lost. `unread` are samples from before.

        A lone row is the cause and gets the error; of several, each is computed again by itself.
        """
        if not self._alone or (len(batch) == 1 and not isinstance(error, _DraftError)):
            return self._requests.fail_forward([*batch.rows], error)
        log.warning("a step of %d requests failed: each is computed again by itself", len(batch), exc_info=error)
        rows = self._batches.take_apart(batch)
        outputs: list[Output] = []
        # Samples that cannot be read are made again: what a row samples depends on its seed and position only.
        with contextlib.suppress(Exception):
            outputs = self._replies.handle(unread)
        for row in rows:
            if row.phase != "done":
                self._requests.restart(row)
        return outputs


class _DraftError(Exception):
    """The draft model has failed, not the sequence."""
