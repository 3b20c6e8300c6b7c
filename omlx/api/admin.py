"""Wire structs of oMLX's own routes under /api/omlx: status, aliases, search, pins, care of the store."""

from __future__ import annotations

import msgspec


class ModelStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A model in memory. Sizes in bytes, counts of requests and sequences."""

    name: str
    state: str
    pinned: bool
    pid: int
    size: int
    weights: str
    context_length: int
    running: int
    waiting: int
    max_batch: int
    """Most sequences decoded in one step since the load."""
    steps: int
    crashes: int


class StatusResponse(msgspec.Struct, frozen=True, kw_only=True):
    """GET /api/omlx/status."""

    version: str
    waiting: int
    """Requests that wait for a model to be loaded."""
    models: list[ModelStatus]
    pinned: list[str]


class AliasRequest(msgspec.Struct):
    """POST /api/omlx/aliases: let `name` mean `target`; an empty target forgets the name."""

    name: str = ""
    target: str = ""


class AliasResponse(msgspec.Struct):
    """GET /api/omlx/aliases."""

    aliases: dict[str, str]


class SearchHit(msgspec.Struct, frozen=True):
    repository: str
    downloads: int
    size: int = 0


class SearchResponse(msgspec.Struct):
    """GET /api/omlx/search?q=TEXT&limit=N."""

    models: list[SearchHit]


class PinRequest(msgspec.Struct):
    """POST /api/omlx/pin: a pinned model is never unloaded to make room and does not expire."""

    model: str = ""
    pinned: bool = True


class PruneResponse(msgspec.Struct, frozen=True):
    """POST /api/omlx/prune. `busy`: nothing was removed because a model is being made."""

    removed: int
    freed: int
    busy: bool


class VerifyRequest(msgspec.Struct):
    """POST /api/omlx/verify: hash every file again; `repair` drops what is corrupt."""

    repair: bool = False


class DamagedBlob(msgspec.Struct, frozen=True):
    digest: str
    reason: str
    models: list[str]


class VerifyResponse(msgspec.Struct, frozen=True):
    checked: int
    bytes: int
    damaged: list[DamagedBlob]
    repaired: bool


class CacheStats(msgspec.Struct, frozen=True, kw_only=True):
    """The KV store of a loaded model. Sizes in bytes; counts since the load."""

    model: str
    enabled: bool
    lookups: int = 0
    hits: int = 0
    tokens_looked_up: int = 0
    tokens_from_ram: int = 0
    tokens_from_disk: int = 0
    hot_bytes: int = 0
    hot_max_bytes: int = 0
    cold_bytes: int = 0
    """The whole folder on disk, all models together."""
    cold_max_bytes: int = 0
    cold_problem: str = ""


class CacheResponse(msgspec.Struct):
    """GET /api/omlx/cache."""

    models: list[CacheStats]


class CacheClearRequest(msgspec.Struct):
    """POST /api/omlx/cache/clear: forget a model's stored prefixes, or those of all loaded models."""

    model: str = ""


class CacheExplainRequest(msgspec.Struct):
    """POST /api/omlx/cache/explain: how much of a prompt is stored, and why not more. A user's message, or `raw`."""

    model: str = ""
    prompt: str = ""
    raw: bool = False


class CacheExplanation(msgspec.Struct, kw_only=True):
    """Counts in tokens. The texts show where prompt and store part, when they do."""

    tokens: int = 0
    cached_tokens: int = 0
    from_ram: int = 0
    from_disk: int = 0
    reason: str = ""
    message: str = ""
    divergence: int | None = None
    prompt_text: str = ""
    stored_text: str = ""
