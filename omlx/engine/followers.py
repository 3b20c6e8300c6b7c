"""The *followers*: the other ranks of a distributed model, which do what the leader's engine does.

What happens at the leader is noted here as orders and told with its next step. At a follower, and in a model of one
process, nothing is noted.
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
        """Something has to be told with the next step."""
        return self._orders != _NONE

    def add(self, spec: SequenceSpec, seed: int) -> None:
        """`seed`: the one that the leader has drawn."""
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
        """Have their prefix stores follow what was done to the leader's."""
        if self._leads:
            self._orders.hot_bytes = hot_bytes if hot_bytes is not None else self._orders.hot_bytes
            self._orders.clear_store |= clear

    def limit(self, limits: WorkLimits | None, held: frozenset[Priority] | None) -> None:
        if self._leads:
            self._orders.limits = limits or self._orders.limits
            self._orders.held = sorted(held) if held is not None else self._orders.held

    def exchange(self) -> Orders:
        """Tell the orders, or hear them. Returns those that this rank has to carry out yet."""
        if self._ranks.size == 1:
            return _NONE
        orders, self._orders = self._orders, Orders()
        heard = self._ranks.decide(lambda: orders, Orders)
        return _NONE if self._leads else heard

    def stop(self) -> None:
        """No step comes after this."""
        if self._leads:
            self._ranks.expect_end()
            self._ranks.decide(lambda: Orders(stop=True), Orders)
