"""Statistics: what the store has done since it was opened, and what it holds now. Plain data for logs and metrics."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class ColdCounts(msgspec.Struct):
    """What happened to records since the start. Each count is changed by one thread only."""

    written: int = 0
    written_bytes: int = 0
    read: int = 0
    read_bytes: int = 0
    evicted: int = 0
    dropped_queue_full: int = 0
    dropped_over_budget: int = 0
    dropped_too_large: int = 0
    write_errors: int = 0
    missing: int = 0
    """Files gone although the index had them (another process evicted them, or someone deleted them)."""
    damaged: int = 0
    """Files that were torn, truncated, altered, foreign or unreadable, and were removed."""
    index_rebuilt: int = 0
    unfinished_removed: int = 0


class TierUsage(NamedTuple):
    """How often prompts were found, since the store was opened. Counts of lookups and of tokens."""

    lookups: int
    hits: int
    """Lookups whose restore succeeded."""
    tokens_looked_up: int
    tokens_from_ram: int
    tokens_from_disk: int


class Stats(msgspec.Struct, kw_only=True):
    """A snapshot. Counts since the store was opened; sizes in bytes."""

    supported: bool
    reason: str
    """Why nothing is stored, when `supported` is false."""
    block_size: int
    lookups: int
    hits: int
    """Lookups whose restore succeeded."""
    tokens_looked_up: int
    tokens_from_ram: int
    tokens_from_disk: int
    restore_failures: int
    capture_failures: int
    captured: int
    """Records made."""
    recompute_preferred: int
    """Lookups that computed tokens again because reading them would have taken longer."""
    hot_records: int
    hot_bytes: int
    hot_max_bytes: int
    hot_arrays: int
    hot_evictions: int
    lost: int
    """Records pushed out of RAM that the cold tier did not take."""
    cold: bool
    cold_problem: str
    cold_bytes: int
    cold_max_bytes: int
    cold_records: int
    cold_written_this_hour: int
    cold_counts: ColdCounts
    seconds_per_cold_byte: float
    seconds_per_token: float
