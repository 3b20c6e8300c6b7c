"""Checks that a new model loads before it is listed. A worker runs the check itself (`load_check`).

A check takes a few seconds, mostly for the worker's imports. This process remembers the file digests of models that
load, so models with the same files are not checked again.
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
    """Raises CreateError if the model of these layers does not load, InvalidModel if they are not a model.

    `place`: a folder to be made for the check.
    """
    await asyncio.to_thread(accept, layers, store.blobs)  # before a library reads the files
    files = frozenset((it.name, it.digest) for it in layers if it.media_type in {WEIGHTS, FILE})
    if files in _loadable:
        return
    await asyncio.to_thread(store.views.materialize_layers, layers, place)
    await require_loadable_folder(place)
    _loadable[files] = None
    while len(_loadable) > _MOST_REMEMBERED:
        _loadable.popitem(last=False)


async def require_loadable_folder(folder: Path) -> None:
    """Raises CreateError if the model in `folder` does not load."""
    async with aclosing(run_job(CheckLoads(str(folder)))) as lines:
        async for _ in lines:
            pass
