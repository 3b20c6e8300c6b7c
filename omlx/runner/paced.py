"""The work limits in the loop of a runner: whether it steps now, and how long a step took."""

from __future__ import annotations

import time
from collections.abc import Callable

from omlx.engine.pacing import Pacer, Presence, Turn
from omlx.messages.request import Priority
from omlx.messages.work_limits import WorkLimits

LOOK_S = 1.0
"""The longest rest before the limits are applied anew."""


class PacedWork:
    """`presence`: which classes have requests now. `hold`: takes the classes that pause in the next step.

    `finish`: waits until the device has done what steps have launched.
    """

    def __init__(
        self,
        presence: Callable[[], Presence],
        hold: Callable[[frozenset[Priority]], None] = lambda _: None,
        finish: Callable[[], None] = lambda: None,
    ) -> None:
        self._presence, self._hold, self._finish = presence, hold, finish
        self._pacer = Pacer()
        self._here = Presence()
        self._turn = Turn()
        self._began, self._counts = 0.0, False
        self.looks = 0
        """Turns without a step; they count as progress for the supervisor of this process."""

    def limit(self, limits: WorkLimits) -> None:
        self._pacer.limits = limits

    @property
    def limited(self) -> bool:
        """Whether there is anything to decide."""
        limits = self._pacer.limits
        return limits.pace < 1 or limits.share < 1 or not limits.background

    def turn(self) -> Turn:
        """What to do next, where there is work."""
        self._turn, self._here = Turn(), Presence()
        if self.limited:
            self._here = self._presence()
            self._turn = self._pacer.turn(time.monotonic(), self._here)
        self._hold(self._turn.held)
        if self._turn.rest_s or self._turn.idle:
            self.looks += 1
        return self._turn

    def rests(self, turn: Turn | None, works: bool) -> bool:
        """Whether no step comes now: it is time to rest, or work has arrived since the turn (`turn` is None)."""
        return turn.rest_s > 0 if turn is not None else works and self.limited

    def begin(self, turn: Turn | None) -> None:
        """A step begins."""
        self._began, self._counts = time.monotonic(), turn is not None

    def end(self) -> None:
        """The step is done."""
        if self.limited and self._counts:
            if self._pacer.measures(self._here):
                self._finish()
            self._pacer.worked(self._began, time.monotonic(), self._here, self._turn)


def wait_s(turn: Turn) -> float:
    """How long to wait for frames before the step, or before the next turn."""
    return LOOK_S if turn.idle else min(turn.rest_s, LOOK_S)
