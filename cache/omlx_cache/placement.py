"""Placement: where restore points are worth their bytes.

A *stop* is a position at which a prefill chunk should end so that a restore point can be made there. Full-attention
layers can be cut anywhere afterwards and need none; recurrent state exists only at the moment, so its snapshots have to
be placed ahead: before the prompt's last token (the exact repeat), where prompts have parted before, where the caller
knows that the next turn will begin, and on a *grid*. The grid is narrow at the start of a prompt and widens with the
position, so that a prompt that parts anywhere computes at most `RECOMPUTED` of what it shares again; it is as wide as
the byte budget asks.
"""

from __future__ import annotations

from collections.abc import Iterable

GRID_SHARE = 8
"""One sequence's grid may take this fraction (1/8) of the hot tier."""

LEAST = 16
"""Tokens before the first stop that is worth a snapshot."""


RECOMPUTED = 0.15
"""Share of a common prefix that may have to be computed again."""

GRAIN = 64
"""Tokens: no two stops of the grid are closer, since each costs a chunk of its own."""


def snapshot_stops(
    tokens: int,
    start: int,
    *,
    known: Iterable[int],
    every: int,
    block_size: int,
    state_bytes: int,
    budget: int,
    least: int = 0,
) -> list[int]:
    """Stops for a prompt of this many tokens of which `start` are restored, ascending, each above `start`.

    `known` are positions the caller or the store expects prompts to part at. `budget` is the hot tier's size in bytes.
    `every` is the widest and `least` the narrowest that the grid is to be, in tokens.
    """
    affordable = max(1, budget // GRID_SHARE // max(1, state_bytes))
    narrowest = max(min(GRAIN, block_size), least)
    wider = 1.0
    grid = _grid(tokens, narrowest, every, RECOMPUTED)
    while len(grid) > affordable:
        wider *= 1.25
        grid = _grid(tokens, int(narrowest * wider), int(every * wider), min(RECOMPUTED * wider, 1.0))
    stops = {tokens - 1, *known, *grid}
    return sorted(stop for stop in stops if max(start, LEAST - 1) < stop < tokens)


def _grid(tokens: int, narrowest: int, widest: int, share: float) -> list[int]:
    """Positions below `tokens`: from each to the next it is at most `share` of the next, within the two bounds."""
    grain = min(narrowest, GRAIN)
    stops: list[int] = []
    position = 0
    while True:
        gap = position * share / (1 - share) if share < 1 else widest
        position += max(narrowest, int(min(gap, max(widest, narrowest)))) // grain * grain
        if position >= tokens:
            return stops
        stops.append(position)
