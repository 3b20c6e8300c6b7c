"""Operating a cache folder: what a person does with it, with or without a running store.

Functions over the folder alone, for command lines and dashboards; they may run while stores use the folder. None of
them imports MLX.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec

from omlx_cache.database import FILE, IndexUnusableError
from omlx_cache.files import RecordFiles
from omlx_cache.index import Index
from omlx_cache.record_file import DamagedError
from omlx_cache.records import RecordName

_YOUNG_S = 600.0
"""A file without an entry in the index may be one that is just being written, for this long."""


class FolderError(Exception):
    """The folder cannot be used; the message is a sentence for people."""


class ModelUse(msgspec.Struct):
    """What one model (in one layout) has in the folder."""

    name: str
    namespace: str
    """In hex."""
    bytes: int
    records: int
    used: float
    """When it was last used, in seconds since the epoch."""
    fingerprint: str = ""
    """As the store's configuration has it; "" of records that an older version wrote."""


class SessionUse(msgspec.Struct):
    """A named conversation, the model it belongs to, and what it keeps on disk."""

    name: str
    model: str
    bytes: int


class Folder(msgspec.Struct):
    """What a folder holds. `sessions` are the named, pinned conversations."""

    bytes: int
    records: int
    models: list[ModelUse]
    sessions: list[SessionUse]


class Verified(msgspec.Struct):
    """What a verification found; what was damaged, stray or missing is removed from the folder or its index."""

    intact: int = 0
    damaged: int = 0
    stray: int = 0
    """Files that the index does not know."""
    missing: int = 0
    """Entries of the index without a file."""
    faults: list[str] = []
    """A sentence for each."""


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[Index]:
    try:
        with contextlib.closing(Index(folder)) as index:
            yield index
    except (OSError, sqlite3.Error, IndexUnusableError) as error:
        raise FolderError(f"the cache folder {folder} cannot be used: {error}") from error


def show(folder: Path) -> Folder:
    """What the folder holds; an empty answer for a folder without a cache. Raises FolderError."""
    if not (folder / FILE).exists():
        return Folder(0, 0, [], [])
    with _opened(folder) as index:
        size, count = index.totals()
        fingerprints = index.fingerprints()
        models = [
            ModelUse(name, namespace, nbytes, records, used, fingerprints.get(namespace, ""))
            for namespace, name, nbytes, records, used in index.by_model()
        ]
        return Folder(size, count, models, [SessionUse(*session) for session in index.pins.sessions()])


def clear(folder: Path, models: Collection[str] | None = None) -> int:
    """Delete what is stored for models (by name or namespace) or, with None, for all; named sessions included.

    Returns the number of records. Raises FolderError.
    """
    if not (folder / FILE).exists():
        return 0
    files = RecordFiles(folder)
    with _opened(folder) as index:
        known = index.by_model()
        chosen = [
            bytes.fromhex(space) for space, name, *_ in known if models is None or name in models or space in models
        ]
        names = [name for space in chosen for name in index.names_in(space)]
        for name in names:
            files.unlink(name)
        index.remove(names)
        for space in chosen if models is not None else [None]:
            index.pins.remove_all(space)
    return len(names)


def remove_session(folder: Path, name: str) -> bool:
    """Let a named conversation be evicted again; False when there is none of that name. Raises FolderError."""
    if not (folder / FILE).exists():
        return False
    with _opened(folder) as index:
        return index.pins.remove(name)


def verify(folder: Path) -> Verified:
    """Read every record and check it. Damaged files are removed, as are entries and files without the other.

    Raises FolderError.
    """
    result = Verified()
    if not (folder / FILE).exists():
        return result
    files = RecordFiles(folder)
    with _opened(folder) as index:
        known = set(index.names_in(None))
        pending = set(index.all_names()) - known
        for path, name in list(files.all()):
            if name in pending:
                continue
            if name is None or name not in known:
                with contextlib.suppress(OSError):
                    if time.time() - path.stat().st_mtime > _YOUNG_S:
                        path.unlink()
                        result.stray += 1
                        result.faults.append(f"{path.name} was not in the index")
                continue
            known.discard(name)
            _check(files, index, name, result)
        missing = [name for name in known if not files.path(name).exists()]
        index.remove(missing)
        result.missing = len(missing)
        result.faults += [f"{files.path(name).name} is missing" for name in missing]
    return result


def _check(files: RecordFiles, index: Index, name: RecordName, result: Verified) -> None:
    try:
        files.read(name)
        result.intact += 1
    except FileNotFoundError:
        return  # Evicted meanwhile.
    except (OSError, DamagedError) as error:
        result.damaged += 1
        result.faults.append(f"{files.path(name).name}: {error}")
        with contextlib.suppress(OSError):
            files.unlink(name)
        index.remove([name])
