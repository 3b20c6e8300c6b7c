"""One engine in several processes: what the *ranks* of a distributed model agree on so that all of them step alike.

Every rank runs the same engine over its share of the model. A collective inside a forward returns only when all ranks
have come to it, so all must do the same forwards in the same order. What could differ between processes (which requests
came, what the clock says, what a store holds) is therefore decided by rank 0, the *leader*, and told to the others;
everything else follows from it. `SOLO` is the usual case: one process, nobody to agree with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, Protocol, TypeVar

import mlx.core as mx
import msgspec

from omlx.engine.sequence import SequenceSpec
from omlx.messages.request import Priority
from omlx.messages.work_limits import WorkLimits

T = TypeVar("T")


class Orders(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What has happened at the leader since the last step; an order is always followed by a step."""

    add: list[SequenceSpec] = []
    cancel: list[int] = []
    end: list[int] = []
    hot_bytes: int | None = None
    """A new RAM budget for cached prefixes, of each rank."""
    clear_store: bool = False
    limits: WorkLimits | None = None
    """New work limits."""
    held: list[Priority] | None = None
    """Classes that pause from now on; None: as before."""
    stop: bool = False
    """The model is unloaded: no step follows."""


class Ranks(Protocol):
    """The processes that run one model together."""

    rank: int
    size: int
    description: str
    """How the model is divided, for people; "" where it is not."""

    def decide(self, make: Callable[[], T], kind: type[T]) -> T:
        """What `make` returns at the leader, on every rank; followers wait for it and do not call `make`."""

    def gather(self, value: T, kind: type[T]) -> list[T]:
        """Every rank's `value`, by rank, on every rank."""

    def share(self, tokens: mx.array) -> mx.array:
        """The leader's `tokens`, on every rank: a collective of the device, nothing is waited for."""

    def split(self, model: object) -> None:
        """Keep this rank's share of a lazily loaded model. Raises ValueError where it cannot be divided."""

    def expect_end(self) -> None:
        """From here on the other ranks may go: the model is being unloaded."""

    def abort(self, error: Exception) -> NoReturn:
        """End the group: this rank can no longer do what the others do."""


class Solo:
    """A model in one process."""

    rank = 0
    size = 1
    description = ""

    def decide(self, make: Callable[[], T], kind: type[T]) -> T:
        return make()

    def gather(self, value: T, kind: type[T]) -> list[T]:
        return [value]

    def share(self, tokens: mx.array) -> mx.array:
        return tokens

    def split(self, model: object) -> None:
        return None

    def expect_end(self) -> None:
        return None

    def abort(self, error: Exception) -> NoReturn:
        raise error


SOLO = Solo()
