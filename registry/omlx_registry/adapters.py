"""Adapters of a model in the making: a GGUF adapter's layers, and whether an adapter belongs to the base model."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

from omlx_registry.adapter_fit import check_fit
from omlx_registry.architecture import model_info
from omlx_registry.lora import CONFIG_FILE, MLX_WEIGHTS
from omlx_registry.manifest import ADAPTER, Layer
from omlx_registry.metadata import Files
from omlx_registry.model_json import decode_object
from omlx_registry.sanitized_folder import read_bytes
from omlx_registry.store import Store
from omlx_registry.weights import read_header
from omlx_registry.worker_client import ImportAdapter, run_job


def block_count(config: Mapping[str, Any]) -> int:
    """Layers of a model, by its config.json; 0 where that does not say."""
    info = model_info(config, 0)
    return int(info.get(f"{info['general.architecture']}.block_count", 0))


async def convert_adapter(
    store: Store, path: Path, config: Mapping[str, Any], folder: Path, *, check: dict[str, str] | None = None
) -> list[Layer]:
    """Layers of a GGUF adapter for the model with this config.json; `folder` is for the files in the making.

    `check`: as in `ImportAdapter`. The caller holds `Store.working()`. Raises CreateError.
    """
    async with aclosing(run_job(ImportAdapter(str(path), str(folder), dict(config), check or {}))) as steps:
        async for _ in steps:
            pass
    layers = []
    for name in (CONFIG_FILE, MLX_WEIGHTS):
        placed = await asyncio.to_thread(store.blobs.put_file, folder / name, "move")
        layers.append(Layer(ADAPTER, placed.digest, placed.size, name=name))
    return layers


def check_adapter(store: Store, base: list[Layer], adapter: list[Layer], blocks: int) -> None:
    """Raises CreateError where the adapter is for another model."""
    paths = {layer.name: store.blobs.path(layer.digest) for layer in adapter}
    files = Files(base, store.blobs)
    settings = decode_object(read_bytes(paths[CONFIG_FILE], CONFIG_FILE), CONFIG_FILE)
    tensors = read_header(paths[MLX_WEIGHTS], MLX_WEIGHTS)
    check_fit(settings, tensors, files.config(), files.tensors(), blocks)
