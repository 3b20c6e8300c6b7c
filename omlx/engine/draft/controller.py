"""Whether guesses make a reply faster, and how many to make: by the measured times of rounds and plain steps.

What a guess costs is known only from trying: launches, the host's part and the kernels that several positions need
may cost more than the arithmetic. So both kinds of step are timed while the sequence is alone, and rounds go on only
while they make tokens faster than plain steps by a margin. Where they do not, plain steps follow, twice as many as
the last time; then a few small rounds are a new trial. A lost trial costs about a round, so a bad draft costs a few
percent.
"""

from __future__ import annotations

import time
from collections.abc import Callable

MOST_GUESSES = 16
"""In a round, whatever a request asks for."""
_LEAST_GAIN = 1.05
"""Expected speed, relative to plain decoding, from which on a round is taken."""
_REST = (64, 1024)
"""Plain steps after the first lost trial, and after the last of many; each rest is twice the one before."""
_WARM_UP = 4
"""Plain steps at the start of a sequence: what they take depends on its length, and is measured anew."""
_TRIAL = 4
"""Rounds of a trial."""
_TRIAL_GUESSES = 2
"""Guesses in each of them."""
_STEADY = 64
"""Rounds in a row that make up for what was lost before."""
_FRESH = 512
"""Rounds after which their costs are measured anew."""
_MOST = 2.0
"""A measurement counts as at most so many times the one before: now and then a machine stops for a moment."""
_LESS, _MORE = 1 / 2, 1 / 4
"""Weight of a new time that is shorter than the ones before, or longer: disturbances only make a step longer."""
_GAIN_WEIGHT = 1 / 32
"""Weight of a new gain, which varies with the number of right guesses."""
_MEMORY = 0.95
"""Weight of the past in the acceptance rate, per round."""
_TRIAL_WEIGHT = 4.0
"""The past counts as at most so many guesses in a trial."""


class SpeculationController:
    """Decides before every step of a lone sequence, and learns from its time.

    `guess_s`: expected seconds that a guess adds to a plain step, until rounds have been measured.
    """

    def __init__(self, guess_s: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._last: tuple[float, bool] | None = None
        """When the last step ended, and whether it was a round."""
        self._guess_s = guess_s
        self._plain_s = 0.0
        """Seconds of a plain step; 0: not known yet."""
        self._warming = 0
        """Steps of the warm-up that are left: the shortest of them counts."""
        self._round_s: dict[int, float] = {}
        """Seconds of a round, by its guesses."""
        self._tried: set[int] = set()
        """Sizes of rounds that have been run: the first of each compiles."""
        self._acceptance = _AcceptanceRate()
        self._gain = 1.0
        """Speed of the present rounds, relative to plain decoding."""
        self._rounds = 0
        """In a row."""
        self._until_fresh = _FRESH
        self._trial = _TRIAL
        """Rounds of the trial that are left."""
        self._rest = 0
        """Plain steps until rounds may come."""
        self._next_rest = _REST[0]

    def start(self, *, anew: bool = False) -> None:
        """Another sequence, or one whose context has changed. `anew`: forget how well others were guessed."""
        self.pause()
        if anew:
            self._acceptance, self._gain, self._rounds = _AcceptanceRate(), 1.0, 0
            self._trial, self._rest, self._next_rest = _TRIAL, 0, _REST[0]
        self._plain_s, self._warming = 0.0, _WARM_UP - 1
        self._rest = max(self._rest, _WARM_UP)

    def pause(self) -> None:
        """The next step is not of the lone sequence alone: its time is not used."""
        self._last = None

    def guesses(self, most: int, room: int) -> int:
        """How many tokens to guess in the next step, at most `most` and `room`; 0: take a plain step."""
        if self._rest > 0 or not self._plain_s or min(most, room) < 1:
            return 0
        if self._trial:
            return min(_TRIAL_GUESSES, most, room)
        count = self._best(most)
        if not count:
            self._give_up()
        return min(count, room)

    def plain(self) -> None:
        """A plain step has ended."""
        self._rest = max(self._rest - 1, 0)
        seconds = self._interval(guessing=False)
        if seconds is not None and self._warming:
            self._warming -= 1
            self._plain_s = min(self._plain_s or seconds, seconds)
        elif seconds is not None:
            self._plain_s = _smooth(self._plain_s, seconds)

    def round(self, count: int, right: int) -> None:
        """A round of `count` guesses has ended; the first `right` were right."""
        self._acceptance.learn(right, count)
        self._rounds += 1
        self._until_fresh -= 1
        if not self._until_fresh:
            self._until_fresh = _FRESH
            self._round_s.clear()
        seconds = self._interval(guessing=True)
        if seconds is not None and count in self._tried:
            self._round_s[count] = _smooth(self._round_s.get(count, 0.0), seconds)
            gain = (right + 1) * self._plain_s / seconds
            self._gain += (gain - self._gain) * _GAIN_WEIGHT
        self._tried.add(count)
        if self._trial:
            self._trial -= 1
            # A trial ends early where it is lost, but not before a guess was wrong.
            best = self._best(MOST_GUESSES)
            if not best and (right < count or not self._trial):
                self._give_up()
            elif not self._trial:
                self._gain, self._rounds = self._speed(best), 0
        elif self._gain < 1:
            self._give_up()
        elif self._rounds == _STEADY:
            self._next_rest = _REST[0]

    def _give_up(self) -> None:
        self._rest, self._trial = self._next_rest, _TRIAL
        self._next_rest = min(2 * self._next_rest, _REST[1])
        self._acceptance.weaken()

    def _best(self, most: int) -> int:
        """How many guesses make the most tokens per second; 0: none does enough better than plain steps."""
        count = max(range(1, min(most, MOST_GUESSES) + 1), key=self._speed)
        return count if self._speed(count) > _LEAST_GAIN else 0

    def _speed(self, count: int) -> float:
        """Expected tokens per second with rounds of `count` guesses, relative to plain decoding."""
        made = sum(self._acceptance.value**right for right in range(count + 1))
        return made * self._plain_s / self._cost(count)

    def _cost(self, count: int) -> float:
        """Seconds of a round: as measured, or by the cost of a guess in the measured rounds of the nearest size."""
        known = min(self._round_s, key=lambda other: abs(other - count), default=0)
        if not known:
            return self._plain_s + count * self._guess_s
        return self._plain_s + max(self._round_s[known] - self._plain_s, 0.0) * count / known

    def _interval(self, *, guessing: bool) -> float | None:
        """Seconds since the last step, if it was of the same kind: steps of different kinds overlap."""
        now = self._clock()
        last, self._last = self._last, (now, guessing)
        return now - last[0] if last is not None and last[1] == guessing else None


class _AcceptanceRate:
    """The part of the checked guesses that were right; old ones count less."""

    def __init__(self) -> None:
        self._right, self._seen = 3.0, 4.0

    @property
    def value(self) -> float:
        return self._right / self._seen

    def learn(self, right: int, count: int) -> None:
        """Guesses behind the first wrong one of a round were not checked."""
        self._right = self._right * _MEMORY + right
        self._seen = self._seen * _MEMORY + right + (right < count)

    def weaken(self) -> None:
        """Let the next guesses count more than the past ones."""
        if self._seen > _TRIAL_WEIGHT:
            self._right, self._seen = self.value * _TRIAL_WEIGHT, _TRIAL_WEIGHT


def _smooth(known: float, measured: float) -> float:
    if not known:
        return measured
    return known + (min(measured, _MOST * known) - known) * (_LESS if measured < known else _MORE)
