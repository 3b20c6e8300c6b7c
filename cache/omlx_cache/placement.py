"""Placement: where restore points are worth their bytes.

A *stop* is a position at which a prefill chunk should end so that a restore point can be made there. Full-attention
layers can be cut anywhere afterwards and need none; recurrent state exists only at the moment, so its snapshots have to
be placed ahead: before the prompt's last token (the exact repeat), where prompts have parted before, where the caller
knows that the next turn will begin, and on a grid through long prompts as wide as the byte budget asks.
"""

from __future__ import annotations

from collections.abc import Iterable

GRID_SHARE = 8
"""One sequence's grid may take this fraction (1/8) of the hot tier."""

LEAST = 16
"""Tokens before the first stop that is worth a snapshot."""


def snapshot_stops(
    tokens: int, start: int, *, known: Iterable[int], every: int, block_size: int, state_bytes: int, budget: int
) -> list[int]:
    """Stops for a prompt of this many tokens of which `start` are restored, ascending, each above `start`.

    `known` are positions the caller or the store expects prompts to part at. `budget` is the hot tier's size in bytes.
    """
    affordable = max(1, budget // GRID_SHARE // max(1, state_bytes))
    step = max(every, -(-tokens // affordable))
    step = -(-step // block_size) * block_size
    stops = {tokens - 1, *known, *range(step, tokens, step)}
    return sorted(stop for stop in stops if max(start, LEAST - 1) < stop < tokens)
