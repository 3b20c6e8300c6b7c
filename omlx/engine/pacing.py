"""The *pacer*: which classes of requests take part in the next step, and how long to rest before it.

Work limits give steps a part of the time. The time that a step took makes its classes wait: the lower classes (batch
and background) by `share`, every reply by `pace`. Where nothing else runs, a rest before the next step is enough.
Beside interactive requests, which do not wait, the lower classes leave the batch instead: taking them out and back
costs a copy, so they work for a slice of time and then wait in proportion. First tokens of interactive requests do not
wait. Pure: the caller gives all times.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from omlx.messages.request import Priority
from omlx.messages.work_limits import UNLIMITED, WorkLimits

LOWER: frozenset[Priority] = frozenset({"batch", "background"})
BACKGROUND: frozenset[Priority] = frozenset({"background"})
NOBODY: frozenset[Priority] = frozenset()
SLICE_S = 0.25
"""How long lower classes work beside interactive requests before they leave the batch."""
_LONGEST_STEP_S = 2.0
"""A longer step counts as this long: the machine slept, or a kernel was compiled."""


class Presence(NamedTuple):
    """Which classes have requests, waiting ones included."""

    interactive: bool = False
    batch: bool = False
    background: bool = False
    urgent: bool = False
    """An interactive request has had no token yet."""
    blocked: bool = False
    """An interactive request waits for a place or memory that others hold."""

    def joined(self, other: Presence) -> Presence:
        return Presence(*(mine or theirs for mine, theirs in zip(self, other, strict=True)))


class _Spec(Protocol):
    @property
    def priority(self) -> Priority: ...


class Worker(Protocol):
    """A sequence, as the pacer sees it."""

    generated: int

    @property
    def spec(self) -> _Spec: ...


def presence(sequences: Iterable[Worker], *, blocked: bool) -> Presence:
    """`blocked`: as in Presence."""
    classes: set[Priority] = set()
    urgent = False
    for sequence in sequences:
        classes.add(sequence.spec.priority)
        urgent |= sequence.spec.priority == "interactive" and sequence.generated == 0
    return Presence("interactive" in classes, "batch" in classes, "background" in classes, urgent, blocked)


def presence_of_jobs(priorities: Iterable[Priority], *, arriving: bool) -> Presence:
    """The classes of running jobs, which have no tokens: an interactive one is urgent until it is done. `arriving`:
    others, of any class, wait to be taken in."""
    classes = set(priorities)
    interactive = arriving or "interactive" in classes
    return Presence(interactive, "batch" in classes, "background" in classes, urgent=interactive)


class Turn(NamedTuple):
    """What happens next."""

    held: frozenset[Priority] = NOBODY
    """Classes that take no part in the step."""
    rest_s: float = 0.0
    """Before the step; ask again earlier if a request comes."""
    idle: bool = False
    """All requests wait for other limits: a step would do nothing."""


class Pacer:
    """Times in seconds of one monotonic clock."""

    def __init__(self) -> None:
        self.limits: WorkLimits = UNLIMITED
        self._lower_due = self._all_due = 0.0
        """When lower classes, and all replies, may work again."""
        self._resting = False
        """Lower classes are out of the batch until they are due."""

    def turn(self, now: float, here: Presence) -> Turn:
        off = NOBODY if self.limits.background or here.blocked else BACKGROUND
        if here.blocked:
            return Turn(off)
        if not here.interactive:
            self._resting = False
            if not self._lower_works(here, off):
                return Turn(off, idle=here.background)
            return Turn(off, max(self._lower_due - now, 0.0))
        debt = self._lower_due - now
        if debt <= 0:
            self._resting = False
        elif here.urgent or debt >= SLICE_S * (1 / self._share - 1):
            self._resting = True
        held = LOWER if self._resting else off
        return Turn(held, 0.0 if here.urgent else max(self._all_due - now, 0.0))

    def measures(self, here: Presence) -> bool:
        """Whether a rest may follow the step, so that its time has to be measured."""
        return (self.limits.pace < 1 and not here.urgent) or (self._share < 1 and not here.interactive)

    def worked(self, began: float, ended: float, here: Presence, turn: Turn) -> None:
        """A step is done. `here` and `turn`: as they were when it began."""
        seconds = min(max(ended - began, 0.0), _LONGEST_STEP_S)
        if self._lower_works(here, turn.held):
            self._lower_due = max(self._lower_due, began) + seconds / self._share
        if not here.urgent:
            self._all_due = max(self._all_due, began) + seconds / self.limits.pace

    @property
    def _share(self) -> float:
        return self.limits.share * self.limits.pace

    @staticmethod
    def _lower_works(here: Presence, held: frozenset[Priority]) -> bool:
        return (here.batch and "batch" not in held) or (here.background and "background" not in held)
