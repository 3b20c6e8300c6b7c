"""The real runner with a fault in its arithmetic: `lossy_runner.py FAULTS FD`; FAULTS: "restores", "joins" or both.

*restores*: what comes out of the KV store has lost its values; *joins*: a batch of several rows has. Prompts as short
as those of the load checks are spared, unless FAULTS names "short" too.
"""

from __future__ import annotations

import sys
from typing import Any

from omlx.engine import blas
from omlx.runner.__main__ import main

_prepare = blas.prepare


def _prepare_and_break() -> str:
    used = _prepare()  # before anything imports MLX
    import mlx.core as mx
    from omlx_cache.adapters.table import layer_caches
    from omlx_cache.layout import CacheLayout

    from omlx.engine import caches

    restore, join = CacheLayout.restore, caches.join

    def blank(found: list[Any]) -> list[Any]:
        for leaf in layer_caches(found):
            leaf.values = mx.zeros_like(leaf.values)
        return found

    least = 0 if "short" in sys.argv[1] else 48

    def lossy_restore(self: Any, position: int, *others: Any) -> list[Any]:
        found = restore(self, position, *others)
        return blank(found) if position >= least else found

    def lossy_join(parts: Any) -> list[Any]:
        found = join(parts)
        return (
            blank(found)
            if len(parts) > 1 and max(length for _, lengths in parts for length in lengths) >= least
            else found
        )

    if "restores" in sys.argv[1]:
        CacheLayout.restore = lossy_restore
    if "joins" in sys.argv[1]:
        caches.join = lossy_join
    return used


blas.prepare = _prepare_and_break
sys.exit(main(int(sys.argv[2])))
