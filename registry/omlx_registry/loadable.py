"""Checks that a new model loads before it is listed (`load_check`). What loaded once is not checked again: the store
keeps a record of the file digests of models that load.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import uuid
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import msgspec

from omlx_registry.acceptance import accept
from omlx_registry.load_checkers import LoadCheckers
from omlx_registry.manifest import FILE, WEIGHTS, Layer
from omlx_registry.store import Store

_MOST_RECORDS: Final = 1000
_LIBRARIES: Final = ("mlx-lm", "mlx-vlm", "mlx-audio", "transformers", "omlx")
"""Another version of one of them may load other models."""
_RECORDS: Final = msgspec.msgpack.Decoder(list[bytes])
_checkers: Final[dict[str, LoadCheckers]] = {}
"""By module. Stores share them: checks of all of them need the same imports."""


async def require_loadable(
    store: Store, layers: list[Layer], place: Path, capabilities: Iterable[str] = (), *, renders: bool = False
) -> None:
    """Raises CreateError if the model of these layers does not load, InvalidModel if they are not a model.

    `place`: a folder to be made for the check. `capabilities`: what its maker states that it can do.
    `renders`: whether its chat template must render, too.
    """
    await asyncio.to_thread(accept, layers, store.blobs)  # before a library reads the files
    records = store.root / "omlx" / "loadable.msgpack"
    capabilities = sorted(capabilities)
    content = _content(store, layers, capabilities, renders=renders)
    if content in _read(records):
        return
    await asyncio.to_thread(store.views.materialize_layers, layers, place)
    await require_loadable_folder(store, place, capabilities, renders=renders)
    await asyncio.to_thread(_note, records, content)


def prepare_checks(store: Store) -> None:
    """Start a checker ahead of the check that will follow."""
    _checkers_of(store).prepare()


async def require_loadable_folder(
    store: Store, folder: Path, capabilities: Iterable[str] = (), *, renders: bool = False
) -> None:
    """Raises CreateError if the model in `folder` does not load; `renders` as above."""
    await _checkers_of(store).check(folder, capabilities, renders=renders)


def _checkers_of(store: Store) -> LoadCheckers:
    return _checkers.setdefault(store.load_checker, LoadCheckers(store.load_checker))


def _content(store: Store, layers: Iterable[Layer], capabilities: list[str], *, renders: bool) -> bytes:
    """A digest over all that decides whether a model loads."""
    files = sorted((it.name, it.digest) for it in layers if it.media_type in {WEIGHTS, FILE})
    libraries = [_version(name) for name in _LIBRARIES]
    return hashlib.sha256(msgspec.json.encode([store.load_checker, libraries, files, capabilities, renders])).digest()


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return ""


def _read(records: Path) -> list[bytes]:
    try:
        return _RECORDS.decode(records.read_bytes())
    except (OSError, msgspec.MsgspecError):
        return []


def _note(records: Path, content: bytes) -> None:
    """Of several processes the last writer wins: a lost record costs one more check."""
    with contextlib.suppress(OSError):
        records.parent.mkdir(parents=True, exist_ok=True)
        draft = records.with_name(f"{records.name}.{uuid.uuid4().hex}")
        draft.write_bytes(msgspec.msgpack.encode([*_read(records), content][-_MOST_RECORDS:]))
        draft.replace(records)
