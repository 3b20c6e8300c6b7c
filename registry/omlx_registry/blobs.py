"""Blobs: content-addressed files, `blobs/sha256-<64 hex>`.

A blob is complete or absent: bytes gather in a temporary file beside the blobs, are hashed, synced and renamed into
place. Temporary files that a killed process left are removed by `BlobStore.sweep`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, NamedTuple, Self

from omlx_registry.errors import DigestMismatch, InvalidDigest, storage_errors

_DIGEST = re.compile(r"sha256[:-]([0-9a-fA-F]{64})")
_BLOB_FILE = re.compile(r"sha256-[0-9a-f]{64}")
_PARTIAL = re.compile(r"sha(?:1-[0-9a-f]{40}|256-[0-9a-f]{64})-partial.*")
_TEMPORARY: Final = ".omlx-"
_CHUNK: Final = 1 << 16

Transfer = Literal["link", "move", "copy"]
"""How a file becomes a blob: hard link, move (the source is gone) or copy.

Small files are copied even so, and all where links do not reach: an editor that writes a linked configuration in place
would change the blob. Weights are replaced, not edited.
"""
_LINKED_FROM: Final = 16 << 20


def canonical_digest(digest: str) -> str:
    """`sha256:<64 lower-case hex>` of either spelling (`sha256:` or `sha256-`); raises InvalidDigest."""
    match = _DIGEST.fullmatch(digest)
    if match is None:
        raise InvalidDigest(digest)
    return f"sha256:{match.group(1).lower()}"


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def hash_file(path: Path) -> tuple[str, int]:
    """Digest and size in bytes of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return f"sha256:{digest}", file.tell()


def read_file(path: str) -> bytes:
    """All bytes of a small file. A listing reads thousands: this takes a third of the time of `Path.read_bytes`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = piece = os.read(descriptor, _CHUNK)
        while len(piece) == _CHUNK:  # A regular file gives less only at its end.
            piece = os.read(descriptor, _CHUNK)
            data += piece
        return data
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable (a rename is not until its folder is synced)."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Placed(NamedTuple):
    """A blob that is now in the store; `new`: it was not there before."""

    digest: str
    size: int
    new: bool


class BlobWriter:
    """Takes the bytes of one blob; leaving the `with` block without an error puts it in place.

    With an expected digest other bytes raise DigestMismatch; without one the digest is theirs. After an error nothing
    is left behind.
    """

    def __init__(
        self,
        store: BlobStore,
        expected: str | None,
        hold: AbstractContextManager[None],
        settled: Callable[[str], None] = lambda digest: None,
    ) -> None:
        self._hold = hold
        self._settled = settled
        self._store = store
        self._expected = expected
        self._hash = hashlib.sha256()
        self._path = store.temporary()
        self.size = 0
        self.digest = ""
        """Set when the block was left."""

    def __enter__(self) -> Self:
        self._hold.__enter__()
        try:
            self._store.folder.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("xb")
        except BaseException as error:
            self._hold.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._hash.update(data)
        with storage_errors(self._store.folder.parent):
            self._file.write(data)
        self.size += len(data)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
            else:
                with contextlib.suppress(OSError):  # The first error counts.
                    self._file.close()
        finally:
            self._path.unlink(missing_ok=True)
            self._hold.__exit__(None, None, None)

    def _finish(self) -> None:
        with storage_errors(self._store.folder.parent), self._file:
            self.digest = f"sha256:{self._hash.hexdigest()}"
            if self._expected is not None and self._expected != self.digest:
                raise DigestMismatch(self._expected, self.digest)
            self._file.flush()
            os.fsync(self._file.fileno())
        with storage_errors(self._store.folder.parent):
            self._store.settle(self._path, self.digest)
        self._settled(self.digest)


class BlobStore:
    """The folder of blobs. Knows bytes and digests, nothing of models."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._prefix = f"{folder}{os.sep}sha256-"

    def path(self, digest: str) -> Path:
        """Where the blob is or would be; raises InvalidDigest."""
        return self.folder / canonical_digest(digest).replace(":", "-")

    def read(self, digest: str) -> bytes:
        """All bytes of a small blob; OSError where it is absent."""
        return read_file(f"{self._prefix}{canonical_digest(digest)[7:]}")

    def has(self, digest: str) -> bool:
        return self.path(digest).is_file()

    def size(self, digest: str) -> int | None:
        """Bytes on disk; None where the blob is absent."""
        try:
            return self.path(digest).stat().st_size
        except FileNotFoundError:
            return None

    def writer(
        self,
        digest: str | None = None,
        hold: AbstractContextManager[None] | None = None,
        settled: Callable[[str], None] = lambda digest: None,
    ) -> BlobWriter:
        """A writer that verifies `digest` (any spelling), or computes one where None is given.

        `hold` is entered while it writes, so that nobody sweeps its temporary file away. `settled` is told the digest
        once the blob is in place.
        """
        return BlobWriter(self, None if digest is None else canonical_digest(digest), hold or nullcontext(), settled)

    def put_bytes(self, data: bytes) -> Placed:
        """Store small data."""
        digest = digest_of(data)
        if self.size(digest) == len(data):
            return Placed(digest, len(data), new=False)
        with self.writer(digest) as writer:
            writer.write(data)
        return Placed(digest, len(data), new=True)

    def put_file(self, source: Path, transfer: Transfer = "link", *, expected: str | None = None) -> Placed:
        """Take in a file. Symbolic links are followed: the caller decides whether they may be.

        Raises DigestMismatch where the content is not what `expected` says.
        """
        source = source.resolve(strict=True)
        digest, size = hash_file(source)
        if expected is not None and canonical_digest(expected) != digest:
            raise DigestMismatch(canonical_digest(expected), digest)
        there = self.size(digest) == size
        # A file that is moved replaces a blob that is there: that may be damaged, and this one was hashed just now.
        if there and transfer != "move":
            return Placed(digest, size, new=False)
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self.temporary()
        try:
            _transfer(source, temporary, "copy" if transfer == "link" and size < _LINKED_FROM else transfer)
            self.settle(temporary, digest)
        finally:
            temporary.unlink(missing_ok=True)
        return Placed(digest, size, new=not there)

    def settle(self, temporary: Path, digest: str) -> None:
        """Give a complete temporary file its blob name, replacing what is there."""
        temporary.replace(self.path(digest))
        sync_folder(self.folder)

    def temporary(self) -> Path:
        """A fresh name on the blobs' own file system; `sweep` knows it."""
        return self.folder / f"{_TEMPORARY}{uuid.uuid4().hex}"

    def remove(self, digest: str) -> int:
        """Delete a blob; returns the bytes it had, 0 where it was absent."""
        path = self.path(digest)
        try:
            size = path.stat().st_size
            path.unlink()
        except FileNotFoundError:
            return 0
        return size

    def list(self) -> Iterator[tuple[str, os.stat_result]]:
        """Digest and stat of every blob; other files (partial downloads, litter) are not blobs."""
        if not self.folder.is_dir():
            return
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if _BLOB_FILE.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    yield entry.name.replace("-", ":"), entry.stat(follow_symlinks=False)

    def sweep(self, partials_before: float, *, dry_run: bool = False) -> int:
        """Remove temporary files, and partial downloads last written before that time (seconds since 1970).

        Only for a caller who knows that no writer lives. Returns the bytes freed; `dry_run`: that would be.
        """
        freed = 0
        for path in self.folder.glob("*") if self.folder.is_dir() else ():
            status = path.lstat()
            partial = _PARTIAL.fullmatch(path.name) and status.st_mtime < partials_before
            if not partial and not path.name.startswith(_TEMPORARY):
                continue
            if dry_run:
                freed += 0 if path.is_dir() else status.st_size
            elif path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                freed += status.st_size
                path.unlink(missing_ok=True)
        return freed


def _transfer(source: Path, target: Path, transfer: Transfer) -> None:
    if transfer != "copy":
        try:
            if transfer == "move":
                source.rename(target)
            else:
                os.link(source, target)
        except OSError:
            pass  # Another file system, or one without hard links: copy.
        else:
            return
    shutil.copyfile(source, target)
    with target.open("rb") as file:
        os.fsync(file.fileno())
    if transfer == "move":
        source.unlink()
