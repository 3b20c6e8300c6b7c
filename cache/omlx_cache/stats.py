"""Statistics: what the store has done since it was opened, and what it holds now. Plain data for logs and metrics."""

from __future__ import annotations

import msgspec

from omlx_cache.cold import ColdCounts


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
