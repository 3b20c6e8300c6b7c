"""Wire structs of /api/omlx/cache: the KV store on disk and in the runners. Sizes in bytes; tokens, records counted."""

from __future__ import annotations

import msgspec


class CacheFaults(msgspec.Struct, frozen=True, kw_only=True):
    """What has happened to records on disk since the model was loaded, as `omlx_cache.ColdCounts` counts it."""

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
    """Files gone although the index had them."""
    damaged: int = 0
    """Files that were torn, truncated, altered, foreign or unreadable, and were removed."""
    index_rebuilt: int = 0
    unfinished_removed: int = 0


class CacheStats(msgspec.Struct, frozen=True, kw_only=True):
    """The KV store of a loaded model. Counts since the load."""

    model: str
    enabled: bool
    supported: bool = True
    reason: str = ""
    """Why nothing is stored for this model, where it is not supported."""
    block_size: int = 0
    """Tokens."""
    lookups: int = 0
    hits: int = 0
    tokens_looked_up: int = 0
    tokens_from_ram: int = 0
    tokens_from_disk: int = 0
    recompute_preferred: int = 0
    """Lookups that computed tokens again because reading them would have taken longer."""
    restore_failures: int = 0
    capture_failures: int = 0
    captured: int = 0
    """Records made."""
    lost: int = 0
    """Records pushed out of RAM that the disk did not take."""
    hot_records: int = 0
    hot_evictions: int = 0
    hot_bytes: int = 0
    hot_max_bytes: int = 0
    cold_records: int = 0
    cold_bytes: int = 0
    """The whole folder on disk, all models together."""
    cold_max_bytes: int = 0
    cold_written_this_hour: int = 0
    cold_problem: str = ""
    cold_counts: CacheFaults = CacheFaults()


class CacheResponse(msgspec.Struct):
    """GET /api/omlx/cache."""

    models: list[CacheStats]


class CachedModel(msgspec.Struct, frozen=True, kw_only=True):
    """What one model (in one layout of its cache) has on disk."""

    name: str
    """The name it was loaded by last."""
    names: list[str] = []
    """All models that use these records, for they have the same weights; empty where all were removed."""
    namespace: str
    bytes: int
    records: int
    used: float
    """When it was last used, in seconds since the epoch."""


class CachedSession(msgspec.Struct, frozen=True, kw_only=True):
    """A named conversation that is kept on disk."""

    name: str
    model: str
    bytes: int


class CacheFolder(msgspec.Struct, kw_only=True):
    """GET /api/omlx/cache/folder: what is on disk, whether its models are loaded or not."""

    path: str
    max_bytes: int
    bytes: int
    records: int
    models: list[CachedModel]
    sessions: list[CachedSession]


class CacheClearRequest(msgspec.Struct):
    """POST /api/omlx/cache/clear: forget a model's stored prefixes, or those of all models."""

    model: str = ""


class CacheCleared(msgspec.Struct):
    records: int
    """Deleted from disk."""
    names: list[str] = []
    """The models whose records they were; empty: all."""


class CacheVerified(msgspec.Struct, kw_only=True):
    """POST /api/omlx/cache/verify: every record on disk was read; what was found wanting has been removed."""

    intact: int = 0
    damaged: int = 0
    stray: int = 0
    missing: int = 0
    faults: list[str] = []


class CacheExplainRequest(msgspec.Struct):
    """POST /api/omlx/cache/explain: how much of a prompt is stored, and why not more. A user's message, or `raw`."""

    model: str = ""
    prompt: str = ""
    raw: bool = False


class CacheExplanation(msgspec.Struct, kw_only=True):
    """The texts show where prompt and store part, when they do."""

    tokens: int = 0
    cached_tokens: int = 0
    from_ram: int = 0
    from_disk: int = 0
    reason: str = ""
    message: str = ""
    divergence: int | None = None
    prompt_text: str = ""
    stored_text: str = ""


class CacheSaveRequest(msgspec.Struct):
    """POST /api/omlx/cache/save: keep a conversation under a name.

    Without a prompt it is the one that the model answered last.
    """

    name: str = ""
    model: str = ""
    prompt: str = ""
    raw: bool = False


class CacheSessionRequest(msgspec.Struct):
    """POST /api/omlx/cache/load and /api/omlx/cache/rm."""

    name: str = ""


class CacheSaved(msgspec.Struct):
    tokens: int


class CacheLoaded(msgspec.Struct):
    """`bytes` were read from disk; what was in RAM already is not counted."""

    model: str
    bytes: int
