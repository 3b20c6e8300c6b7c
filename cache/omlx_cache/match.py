"""A *match* is the answer to a lookup."""

from __future__ import annotations

from typing import Any, NamedTuple

from omlx_cache.explain import Explanation
from omlx_cache.records import RecordName


class Match(NamedTuple):
    """Answer to a lookup: `caches` hold the first `cached_tokens` tokens of the prompt, ready to compute the rest."""

    cached_tokens: int
    caches: list[Any]
    from_ram: int
    from_disk: int
    """Tokens by where their records came from; together `cached_tokens`. One that was read from disk before anybody
    asked for it comes from disk the first time it is used."""
    branch: int
    """Position at which the prompt leaves what is stored."""
    partials: tuple[tuple[int, RecordName], ...] = ()
    """Partial pieces used, by the block they lie in: a capture that completes the block replaces them."""
    why: Explanation | None = None
    """What ends the restored part."""
