"""What the work limits hold back in an engine: classes that pause for now, and sequences without a place.

A held sequence that was being decoded leaves its batch as it is, with its caches and the sample that is not read yet,
and joins again later, so its reply is the same. A held prompt is not prefilled, a waiting one not admitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from omlx_cache.store import PrefixStore

from omlx.engine.batch import Newcomers
from omlx.engine.batches import Batches
from omlx.engine.decode_loop import DecodeLoop
from omlx.engine.pacing import LOWER, NOBODY
from omlx.engine.prefill_loop import PrefillLoop
from omlx.engine.sequence import Sequence
from omlx.messages.request import Priority
from omlx.messages.work_limits import UNLIMITED, WorkLimits


class Holding:
    """Sequences of an engine that wait although they have begun. `tell` is called with each change, for followers."""

    def __init__(
        self,
        batches: Batches,
        prompts: PrefillLoop,
        decoding: DecodeLoop,
        store: PrefixStore | None,
        tell: Callable[[WorkLimits | None, frozenset[Priority] | None], None],
    ) -> None:
        self._batches = batches
        self._prompts = prompts
        self._decoding = decoding
        self._store = store
        self._tell = tell
        self._out: list[Newcomers] = []
        self.limits: WorkLimits = UNLIMITED
        self.held: frozenset[Priority] = NOBODY

    def limit(self, limits: WorkLimits) -> None:
        """Apply these work limits from the next step on, as far as they concern single steps."""
        self.limits = limits
        self._prompts.lower_part = limits.prefill
        self._decoding.speculates = limits.speculation
        if self._store is not None:
            self._store.checkpoints = limits.checkpoints
        self._tell(limits, None)

    def hold(self, classes: frozenset[Priority]) -> None:
        """From the next step on requests of these classes pause; their caches and tokens stay."""
        if classes != self.held:
            self.held = self._prompts.held = classes
            self._tell(None, classes)

    def fits(self, sequence: Sequence, begun: Iterable[Sequence]) -> bool:
        """Whether a waiting sequence may begin beside those that have."""
        priority = sequence.spec.priority
        if priority in self.held:
            return False
        if priority not in LOWER or not self.limits.places:
            return True
        return sum(other.spec.priority in LOWER for other in begun) < self.limits.places

    def take_out(self) -> None:
        """Take rows of held classes out of the batches. Other rows that are lost by it are computed again."""
        if not self.held:
            return
        ids = {row.id for batch in self._batches for row in batch.rows if row.spec.priority in self.held}
        if ids:
            out, lost = self._batches.take_out(ids)
            self._out += out
            for sequence in lost:
                self._prompts.restart(sequence)

    def take_back(self) -> list[Newcomers]:
        """Sequences that may go on."""
        back = [one for one in self._out if one.sequences[0].spec.priority not in self.held]
        self._out = [one for one in self._out if one.sequences[0].spec.priority in self.held]
        return back

    def forget(self, ids: set[int]) -> None:
        self._out = [one for one in self._out if one.sequences[0].id not in ids]

    def clear(self) -> None:
        self._out = []
