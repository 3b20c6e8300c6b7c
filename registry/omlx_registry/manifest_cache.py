"""Memory: what the registry knows about manifests it has read, so that a listing of a thousand models reads none again.

A manifest file that has not changed (same modification time, size and inode) still means the same model. Memory
lasts as long as the process and, in one file that is written after a listing learned something, longer. It is only
ever a shortcut: a file that is missing, damaged or of another version is as good as an empty one.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from pathlib import Path
from typing import Final

import msgspec

from omlx_registry.manifest_folder import ManifestFile, StoredManifest
from omlx_registry.metadata import REVISION
from omlx_registry.spec import ModelSpec

_FORM: Final = 1
"""Of the file. Raise it with any change of the structs it holds."""


class CachedManifest(msgspec.Struct, frozen=True):
    """A manifest as last read. No spec: it is a foreign one."""

    stored: ManifestFile
    spec: ModelSpec | None


class _CacheFile(msgspec.Struct, frozen=True):
    form: int
    revision: int
    known: list[CachedManifest]


class Memory:
    """Thread-safe. Several processes may share the file: the last one to write it wins, which costs only time."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._known: dict[str, CachedManifest] | None = None
        self._learned = False

    def recall(self, entry: StoredManifest) -> CachedManifest | None:
        """What is known about a manifest file; None where it is new or has changed."""
        with self._lock:
            known = self._load().get(entry.path)
        return known if known is not None and known.stored.entry == entry else None

    def learn(self, known: CachedManifest) -> None:
        with self._lock:
            self._load()[known.stored.entry.path] = known
            self._learned = True

    def settle(self, entries: list[StoredManifest]) -> None:
        """After a listing: forget all but these manifests, and write the file if there is news."""
        paths = {entry.path for entry in entries}
        with self._lock:
            known = self._load()
            gone = known.keys() - paths
            for path in gone:
                del known[path]
            if not self._learned and not gone:
                return
            self._learned = False
            data = msgspec.msgpack.encode(_CacheFile(_FORM, REVISION, list(known.values())))
        self._write(data)

    def _load(self) -> dict[str, CachedManifest]:
        """Called with the lock held."""
        if self._known is None:
            self._known = {}
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                file = msgspec.msgpack.decode(self._file.read_bytes(), type=_CacheFile)
                if (file.form, file.revision) == (_FORM, REVISION):
                    self._known = {known.stored.entry.path: known for known in file.known}
        return self._known

    def _write(self, data: bytes) -> None:
        temporary = self._file.with_name(f".{uuid.uuid4().hex}")
        with contextlib.suppress(OSError):  # A store that cannot be written is listed all the same.
            self._file.parent.mkdir(parents=True, exist_ok=True)
            try:
                temporary.write_bytes(data)
                temporary.replace(self._file)
            finally:
                temporary.unlink(missing_ok=True)
