"""omlx_cache: a tiered store for the key/value caches of MLX language models.

    layout = CacheLayout(model)                      # what this model's caches are made of
    store = PrefixStore(layout, StoreConfig(...))    # RAM, and SSD behind it
    match = store.lookup(prompt)                     # caches that hold the longest prefix known
    capture = store.begin(prompt, match=match)       # follow the sequence while it is computed

Importing the package does not import MLX; `CacheLayout` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from omlx_cache.capture import Capture
from omlx_cache.config import StoreConfig, default_block_size
from omlx_cache.explain import Explanation
from omlx_cache.keys import Media
from omlx_cache.match import Match
from omlx_cache.records import Kind
from omlx_cache.stats import Stats
from omlx_cache.store import PrefixStore

if TYPE_CHECKING:
    from omlx_cache.layout import CacheLayout

__all__ = [
    "CacheLayout",
    "Capture",
    "Explanation",
    "Kind",
    "Match",
    "Media",
    "PrefixStore",
    "Stats",
    "StoreConfig",
    "default_block_size",
]


def __getattr__(name: str) -> Any:
    if name == "CacheLayout":
        from omlx_cache.layout import CacheLayout  # imports MLX, which whoever only looks after the files lacks

        return CacheLayout
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
