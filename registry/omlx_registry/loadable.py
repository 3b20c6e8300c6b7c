"""Whether a new model loads, asked before it is listed: the check itself is a worker's (`load_check`).

It takes a worker a few seconds, most of them for its imports. So what was found to load is remembered, by the content
of its files, as long as this process lives: models made of the same files are not checked again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import aclosing
from pathlib import Path
from typing import Final

from omlx_registry.acceptance import accept
from omlx_registry.manifest import FILE, WEIGHTS, Layer
from omlx_registry.store import Store
from omlx_registry.worker_client import CheckLoads, run_job

_MOST_REMEMBERED: Final = 1000
_loadable: OrderedDict[frozenset[tuple[str, str]], None] = OrderedDict()


async def require_loadable(store: Store, layers: list[Layer], place: Path) -> None:
    """Raises CreateError where the model of these layers does not load, InvalidModel where it is none.

    `place`: a folder to be made for the check.
    """
    await asyncio.to_thread(accept, layers, store.blobs)  # before a library reads any of it
    files = frozenset((it.name, it.digest) for it in layers if it.media_type in {WEIGHTS, FILE})
    if files in _loadable:
        return
    await asyncio.to_thread(store.views.materialize_layers, layers, place)
    await require_loadable_folder(place)
    _loadable[files] = None
    while len(_loadable) > _MOST_REMEMBERED:
        _loadable.popitem(last=False)


async def require_loadable_folder(folder: Path) -> None:
    """Raises CreateError where the model in `folder` does not load."""
    async with aclosing(run_job(CheckLoads(str(folder)))) as lines:
        async for _ in lines:
            pass
