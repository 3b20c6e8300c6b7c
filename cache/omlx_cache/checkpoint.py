"""The checkpoint: when records in RAM go to disk.

Records are written when they are pushed out of RAM. A *checkpoint* writes the others: all dirty ones every few minutes
and at a clean end, and the oldest ones earlier when RAM fills up, so that pushing them out later costs nothing. Pure
decisions; the store carries them out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from omlx_cache.hot import HotRecord

PRESSURE = 0.75
"""Share of the hot tier's budget above which the oldest dirty records are written ahead of their eviction."""


class Moment(NamedTuple):
    """What the decision rests on. Times in seconds, `room` in bytes of the write queue."""

    now: float
    last_checkpoint: float
    interval: float
    fill: float
    room: int


def is_due(moment: Moment) -> bool:
    """Whether a checkpoint begins."""
    return moment.interval > 0 and moment.now - moment.last_checkpoint >= moment.interval


def is_pressed(moment: Moment) -> bool:
    """Whether records should be written although no checkpoint is due."""
    return moment.fill > PRESSURE


def next_batch(dirty: Sequence[HotRecord], room: int) -> list[HotRecord]:
    """As many of the dirty records (in the order given) as the write queue takes now."""
    batch = []
    for held in dirty:
        room -= held.record.nbytes
        if room < 0:
            break
        batch.append(held)
    return batch
