"""The batches that are decoded: who joins which, and what happens where a join, a leave or a step fails.

No failure takes rows with it that are not its cause. A sequence that cannot join a batch runs in one of its own. A
batch that fails is taken apart, and its rows are *restarted*: computed again from their tokens, each in a batch of its
own. A row that fails there is the cause.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from omlx_cache.store import PrefixStore

from omlx.engine.batch import Batch, Newcomers
from omlx.engine.capture_rows import finished as capture_finished
from omlx.engine.scheduler import choose_group
from omlx.engine.sequence import Sequence

log = logging.getLogger(__name__)


class Batches:
    """All batches of an engine. `make` gives an empty one; sizes in bytes are the model's (`choose_group`)."""

    def __init__(
        self, make: Callable[[], Batch], *, shared: bool, isolated: bool, token_bytes: int, weight_bytes: int
    ) -> None:
        """`shared`: several sequences may run in one batch. `isolated` False: failures are raised, for processes that
        would no longer do the same."""
        self._make = make
        self._shared = shared
        self._isolated = isolated
        self._token_bytes, self._weight_bytes = token_bytes, weight_bytes
        self._batches: list[Batch] = []

    def __iter__(self) -> Iterator[Batch]:
        return iter([*self._batches])

    def __bool__(self) -> bool:
        return bool(self._batches)

    def __contains__(self, batch: Batch) -> bool:
        return batch in self._batches

    def join(self, newcomers: list[Newcomers]) -> list[tuple[Sequence, Exception]]:
        """Take in sequences whose prompts are read, all of one batch together. Returns those that cannot be decoded."""
        joining: list[tuple[Batch, list[Newcomers]]] = []
        lengths = [(batch, [*batch.lengths]) for batch in self._batches if self._may_share(batch)]
        for newcomer in newcomers if self._shared else [one for several in newcomers for one in several.apart()]:
            alone = not self._shared or any(sequence.alone for sequence in newcomer.sequences)
            index = None if alone else self._choose(newcomer.lengths, [group for _, group in lengths])
            if index is None:
                batch = self._make()
                joining.append((batch, [newcomer]))
                if not alone:
                    lengths.append((batch, [*newcomer.lengths]))
                continue
            batch, group = lengths[index]
            group += newcomer.lengths
            others = next((joiners for other, joiners in joining if other is batch), None)
            if others is None:
                joining.append((batch, [newcomer]))
            else:
                others.append(newcomer)
        return [failure for batch, joiners in joining for failure in self._join(batch, joiners)]

    def _choose(self, lengths: list[int], groups: list[list[int]]) -> int | None:
        return choose_group(lengths, groups, token_bytes=self._token_bytes, weight_bytes=self._weight_bytes)

    def _may_share(self, batch: Batch) -> bool:
        return self._shared and not any(row.alone for row in batch.rows)

    def _join(self, batch: Batch, joiners: list[Newcomers]) -> list[tuple[Sequence, Exception]]:
        """Together; where that fails one after the other; who cannot join at all runs in a batch of its own."""
        try:
            batch.join(joiners)
        except Exception as error:
            if not self._isolated:
                raise
            each = [one for joiner in joiners for one in joiner.apart()]
            if len(each) == 1 and not batch:
                return [(each[0].sequences[0], error)]
            log.warning("a join failed; the sequences join one by one", exc_info=error)
            failures = []
            for one in each:
                failures += self._join_or_run_alone(batch, one)
            return failures
        if batch not in self._batches:
            self._batches.append(batch)
        return []

    def _join_or_run_alone(self, batch: Batch, joiner: Newcomers) -> list[tuple[Sequence, Exception]]:
        try:
            batch.join([joiner])
        except Exception:
            for sequence in joiner.sequences:
                sequence.alone = True
            return self._join(self._make(), [joiner])
        if batch not in self._batches:
            self._batches.append(batch)
        return []

    def capture(self, store: PrefixStore, finished: list[Sequence]) -> None:
        """Hand the whole of these sequences' caches to the store. Where that fails, they are not stored."""
        for batch in self:
            rows = [sequence for sequence in finished if sequence in batch.rows]
            try:
                capture_finished(store, batch.held, batch.places_of(rows))
            except Exception:
                log.warning("the contexts of finished requests could not be stored", exc_info=True)

    def leave(self, gone: set[int]) -> list[Sequence]:
        """Drop the rows of the sequences with these ids. Returns others that lost their batch and must be restarted."""
        restarted = []
        for batch in self:
            try:
                batch.leave(gone)
            except Exception:
                if not self._isolated:
                    raise
                log.warning("a row could not leave its batch: the others are computed again", exc_info=True)
                restarted += [row for row in self.take_apart(batch) if row.id not in gone]
        self._batches = [batch for batch in self._batches if len(batch)]
        return restarted

    def take_out(self, ids: set[int]) -> tuple[list[Newcomers], list[Sequence]]:
        """Take rows out that will join again. Returns those that could be taken, and the result of `leave`."""
        out = [one for batch in self for one in batch.parts(ids)]
        return out, self.leave({one.sequences[0].id for one in out})

    def take_apart(self, batch: Batch) -> list[Sequence]:
        """Its rows, to be restarted: they no longer have a batch, and will not share one again."""
        rows = [*batch.rows]
        self._batches = [other for other in self._batches if other is not batch]
        batch.close()
        for row in rows:
            row.alone = True
        return rows

    def clear(self) -> None:
        self._batches.clear()
