"""Which adapter is for which cache. A new class of caches is a file in this folder and its line in `ADAPTERS`.

The store goes by behaviour: an adapter reads caches whose instance attributes it expects, once it is proven on a small
copy; names of classes play no role, so the caches of mlx-lm and of mlx-vlm are read alike. The engine goes by mlx-lm's
classes, since batching depends on their exact behaviour.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mlx_lm.models.cache import CacheList

from omlx_cache.adapters.adapter import ANY, CacheAdapter
from omlx_cache.adapters.chunk import CHUNK
from omlx_cache.adapters.full import FULL
from omlx_cache.adapters.proof import is_proven
from omlx_cache.adapters.quantized import QUANTIZED
from omlx_cache.adapters.state import STATE
from omlx_cache.adapters.window import WINDOW

ADAPTERS: tuple[CacheAdapter, ...] = (FULL, WINDOW, CHUNK, QUANTIZED, STATE)

_BY_ATTRIBUTES = {attributes: adapter for adapter in ADAPTERS for attributes in adapter.attributes}
_BY_CLASS = {kind: adapter for adapter in ADAPTERS for kind in adapter.classes}


def proven_adapter(fresh: Any) -> CacheAdapter | None:
    """The adapter that reads this class of caches, proven on a copy of the `fresh` one; None: unknown."""
    adapter = _looks_like(fresh)
    if adapter is None:
        return None
    try:
        return adapter if adapter.reads(fresh) and (adapter.keeps_state or is_proven(adapter, fresh)) else None
    except Exception:
        # Whatever an unknown class raises here, it is not one of those we can read.
        return None


def adapter_of(cache: Any) -> CacheAdapter:
    """The adapter of a cache that a model works with: of its class, or else what its attributes say."""
    return _BY_CLASS.get(type(cache)) or _looks_like(cache) or ANY


def native(fresh: Any) -> Any:
    """mlx-lm's cache for a `fresh` one of mlx-vlm, where both have one like it: only those can be batched."""
    return (_looks_like(fresh) or ANY).native(fresh)


def layer_caches(caches: Sequence[Any]) -> list[Any]:
    """The caches in order, lists of caches within them opened."""
    opened: list[Any] = []
    for cache in caches:
        inner = getattr(cache, "caches", None)
        opened += layer_caches(inner) if isinstance(inner, list | tuple) else [cache]
    return opened


def mapped(function: Callable[..., Any], *caches: Any) -> Any:
    """What `function` makes of caches that belong together; of lists of caches, one by one."""
    if isinstance(caches[0], CacheList):
        return CacheList(*(mapped(function, *inner) for inner in zip(*(it.caches for it in caches), strict=True)))
    return function(*caches)


def _looks_like(cache: Any) -> CacheAdapter | None:
    attributes = frozenset(vars(cache)) if hasattr(cache, "__dict__") else frozenset()
    return _BY_ATTRIBUTES.get(attributes)
