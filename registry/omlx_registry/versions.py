"""The version of a store: a mark in it says which programs can read it.

A store of a newer version is left alone, one of an older is brought up to date, its manifests kept beside it first.
Blobs are named by their content and never need a change.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from omlx_registry import locks
from omlx_registry.errors import StorageError

VERSION = 1


class _Mark(msgspec.Struct):
    version: int


def _begin(root: Path) -> None:
    """Stores before the mark are laid out as those of version 1."""


MIGRATIONS: Mapping[int, Callable[[Path], None]] = {0: _begin}
"""From a version to the next; each may be repeated, should the program end in the middle."""


def bring_up_to_date(root: Path) -> None:
    """Make the store at `root` one of this version. Raises StorageError where it is newer, OSError."""
    mark = root / "omlx" / "version.json"
    with locks.exclusive(root / "omlx" / "changing.lock"):
        version = _read(mark, root)
        if version > VERSION:
            raise StorageError(
                f"the models folder {root} was written by a newer oMLX (its version is {version}, this program knows "
                f"{VERSION}): update oMLX, or name another folder with OMLX_MODELS"
            )
        if version == VERSION:
            return
        manifests = root / "manifests"
        backup = root / "omlx" / "backups" / f"version-{version}"
        if manifests.is_dir() and not backup.exists():
            draft = backup.with_suffix(".part")
            shutil.rmtree(draft, ignore_errors=True)
            shutil.copytree(manifests, draft, symlinks=True)
            draft.rename(backup)
        for step in range(version, VERSION):
            MIGRATIONS[step](root)
        draft = mark.with_suffix(".part")
        draft.write_bytes(msgspec.json.encode(_Mark(VERSION)))
        draft.replace(mark)


def _read(mark: Path, root: Path) -> int:
    try:
        return msgspec.json.decode(mark.read_bytes(), type=_Mark).version
    except FileNotFoundError:
        return 0
    except msgspec.MsgspecError as error:
        raise StorageError(f"the mark {mark} of the models folder cannot be read ({error}): remove it") from error
