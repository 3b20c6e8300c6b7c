"""How a store is set up."""

from __future__ import annotations

import msgspec

_SMALL_MODEL = 64 << 10
"""Bytes per token below which the default block is smaller: such a model's prompts are short and its blocks cheap."""


class StoreConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a store is set up. Sizes in bytes, times in seconds."""

    fingerprint: str
    """Must differ wherever weights, adapter, quantization or the precision they are computed in differ."""
    model: str = ""
    """The model's name, for people."""
    block_size: int = 0
    """Tokens per block, 16 to 1024; 0: by model size."""
    hot_bytes: int
    """RAM for records."""
    hot_arrays: int = 100_000
    folder: str = ""
    """Of the cold tier; "": RAM only."""
    cold_bytes: int = 0
    """SSD for the records of all models in that folder."""
    write_budget: int = 0
    """Most bytes written to disk per hour; 0: no limit."""
    write_queue_bytes: int = 256 << 20
    write_through: bool = False
    """Write every record at once instead of when it is pushed out of RAM or at a checkpoint."""
    checkpoint_interval: float = 300.0
    snapshot_every: int = 2048
    """Most tokens between state snapshots in long prompts (models with recurrent layers), where memory allows."""
    snapshot_least: int = 0
    """Tokens that are computed again sooner than a snapshot is placed for them."""
    restore_least: int = 0
    """Tokens that are computed again sooner than they are restored."""


def default_block_size(bytes_per_token: int) -> int:
    """Tokens per block: 256, and 64 for small models, whose blocks are cheap and whose prompts are short."""
    return 64 if bytes_per_token < _SMALL_MODEL else 256
