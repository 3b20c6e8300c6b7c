"""Holding a power limit: from measured watts to a *pace*, the part of the time that decode steps may take.

An integral controller whose step is relative to the limit. Power is about `idle + pace * more`, so with a step of
`_GAIN` the error shrinks by at least `1 - _GAIN` and never overshoots by itself, whatever `idle` and `more` are; a
measurement that lags by one step overshoots a little and settles.
"""

from __future__ import annotations

from typing import Final

SLOWEST: Final = 0.05
"""The lowest pace: work goes on even where the idle machine takes more than the limit."""
_GAIN: Final = 0.4
_FASTEST_RISE: Final = 1.25
"""In one step: a short dip in power is no reason to start at full speed again."""
_CLOSE: Final = 0.02
"""An error of this part of the limit is left alone, or the pace would change with every measurement."""


def next_pace(pace: float, watts: float, limit: float) -> float:
    """The pace for the next second, after one at `pace` that took `watts`. `limit` in watts, above 0."""
    error = (limit - watts) / limit
    if abs(error) <= _CLOSE and pace < 1:
        return pace
    return min(max(pace * min(1 + _GAIN * error, _FASTEST_RISE), SLOWEST), 1.0)
