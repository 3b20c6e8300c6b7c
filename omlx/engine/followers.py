"""The *followers*: the other ranks of a distributed model, which do what the leader's engine does.

The leader records here as orders what its engine does, and sends them with its next step. A follower, and a model of
one process, record nothing.
"""

from __future__ import annotations

import msgspec

from omlx.engine.ranks import Orders, Ranks
from omlx.engine.sequence import SequenceSpec
from omlx.messages.request import Priority
from omlx.messages.work_limits import WorkLimits

_NONE = Orders()


class Followers:
    """Of the engine of one rank."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._leads = ranks.size > 1 and ranks.rank == 0
        self._orders = Orders()

    @property
    def have_orders(self) -> bool:
        """There are orders to send with the next step."""
        return self._orders != _NONE

    def add(self, spec: SequenceSpec, seed: int) -> None:
        """`seed`: the one that the leader has chosen."""
        if self._leads:
            sampling = msgspec.structs.replace(spec.sampling, seed=seed)
            self._orders.add.append(msgspec.structs.replace(spec, sampling=sampling))

    def cancel(self, id: int) -> None:
        if self._leads:
            self._orders.cancel.append(id)

    def end(self, id: int) -> None:
        if self._leads:
            self._orders.end.append(id)

    def change_store(self, *, hot_bytes: int | None = None, clear: bool = False) -> None:
        """Apply a change of the leader's prefix store to theirs."""
        if self._leads:
            self._orders.hot_bytes = hot_bytes if hot_bytes is not None else self._orders.hot_bytes
            self._orders.clear_store |= clear

    def limit(self, limits: WorkLimits | None, held: frozenset[Priority] | None) -> None:
        if self._leads:
            self._orders.limits = limits or self._orders.limits
            self._orders.held = sorted(held) if held is not None else self._orders.held

    def exchange(self) -> Orders:
        """Send the orders (leader) or receive them. Returns those that this rank still has to carry out."""
        if self._ranks.size == 1:
            return _NONE
        orders, self._orders = self._orders, Orders()
        heard = self._ranks.decide(lambda: orders, Orders)
        return _NONE if self._leads else heard

    def stop(self) -> None:
        """Tell the followers that no step follows."""
        if self._leads:
            self._ranks.expect_end()
            self._ranks.decide(lambda: Orders(stop=True), Orders)
