"""What the leader of a distributed model tells the other ranks with each step (see `ranks`)."""

from __future__ import annotations

from typing import Final

from omlx.engine.ranks import Orders, Ranks
from omlx.engine.sequence import SequenceSpec

_NONE: Final = Orders()


class StepOrders:
    """Collected between two steps at the leader; in one process and at followers nothing is collected."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._leads = ranks.size > 1 and ranks.rank == 0
        self._orders = Orders()

    @property
    def pending(self) -> bool:
        """There is something to tell with the next step."""
        return self._orders != _NONE

    def add(self, spec: SequenceSpec) -> None:
        if self._leads:
            self._orders.add.append(spec)

    def cancel(self, id: int) -> None:
        if self._leads:
            self._orders.cancel.append(id)

    def end(self, id: int) -> None:
        if self._leads:
            self._orders.end.append(id)

    def store(self, *, hot_bytes: int | None, clear: bool) -> None:
        if self._leads:
            self._orders.hot_bytes = hot_bytes if hot_bytes is not None else self._orders.hot_bytes
            self._orders.clear_store |= clear

    def exchange(self) -> Orders:
        """Tell the followers what came in since the last step. At a follower: what it has to do."""
        if self._ranks.size == 1:
            return _NONE
        orders, self._orders = self._orders, Orders()
        decided = self._ranks.decide(lambda: orders, Orders)
        return _NONE if self._leads else decided

    def stop(self) -> None:
        """Let the followers go; no step comes after this."""
        if self._leads:
            self._ranks.expect_end()
            self._ranks.decide(lambda: Orders(stop=True), Orders)
