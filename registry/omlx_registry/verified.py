"""Verified blobs: which files of the store were hashed, and what they looked like then.

Hashing a large model takes a minute, so a blob that has not been written since it was last found right is not hashed
again: its size, modification time and inode are recorded. A record that is lost or out of date costs only a hash.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from pathlib import Path
from typing import Final

import msgspec

from omlx_registry.blobs import BlobStore, canonical_digest, hash_file

_RECORDS: Final = msgspec.msgpack.Decoder(dict[str, tuple[int, int, int]])


class VerifiedBlobs:
    """The records of one store. Thread-safe; among processes the last writer wins, which loses only records."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._file = blobs.folder.parent / "omlx" / "verified.msgpack"
        self._lock = threading.Lock()

    def is_right(self, digest: str, size: int | None = None) -> bool:
        """Whether the blob is there with the content its name says. `size`: its bytes, where they are known."""
        digest = canonical_digest(digest)
        path = self._blobs.path(digest)
        try:
            seen = _seen(path)
            if size is not None and seen[0] != size:
                return False
            if self._read().get(digest) == seen:
                return True
            if hash_file(path)[0] != digest:
                return False
        except FileNotFoundError:
            return False
        self.note(digest)
        return True

    def note(self, digest: str) -> None:
        """Record a blob whose content was hashed just now."""
        digest = canonical_digest(digest)
        with self._lock, contextlib.suppress(OSError):  # Without a record it is hashed once more.
            records = {it: seen for it, seen in self._read().items() if self._blobs.has(it)}
            records[digest] = _seen(self._blobs.path(digest))
            self._file.parent.mkdir(parents=True, exist_ok=True)
            draft = self._file.with_name(f"{self._file.name}.{uuid.uuid4().hex}")
            draft.write_bytes(msgspec.msgpack.encode(records))
            draft.replace(self._file)

    def _read(self) -> dict[str, tuple[int, int, int]]:
        try:
            return _RECORDS.decode(self._file.read_bytes())
        except (OSError, msgspec.MsgspecError):
            return {}


def _seen(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino
