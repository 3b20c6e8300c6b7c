"""The manifest folder: which names there are, and the manifest file of each.

    <host>/<namespace>/<model>/<tag>   one manifest each

Names are found whatever their letter case. The folder may hold manifests of other programs, and may be shared with
them: a link that leads out of it is not followed to write or read a model. The store (`store`) has the rules that
keep manifests and blobs consistent, and the locks.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec

from omlx_registry.blobs import read_file, sync_folder
from omlx_registry.errors import Damaged, InvalidName, reason
from omlx_registry.manifest import Manifest, decode_manifest, digests_in
from omlx_registry.names import Name, name_from_path

_LONGEST_FILE_NAME = 255
_UNNAMED = re.compile(r"\.[0-9a-f]{32}")
"""A manifest being written, before it gets its name."""


class StoredManifest(msgspec.Struct, frozen=True):
    """A manifest file seen in a walk. Equal entries mean an unchanged file."""

    name: Name
    path: str
    mtime_ns: int
    size: int
    inode: int


class ManifestFile(msgspec.Struct, frozen=True):
    """A manifest as read from disk."""

    entry: StoredManifest
    manifest: Manifest
    digest: str
    """SHA-256 of the manifest file, 64 hex."""


class InUse(msgspec.Struct, frozen=True):
    """Digests of blobs that a manifest mentions, and SHA-256 of the manifest files, 64 hex."""

    blobs: set[str]
    manifests: set[str]


class ManifestFolder:
    """Manifests by name. Thread-safe; those who change it hold the store's lock."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def entries(self) -> Iterator[StoredManifest]:
        """Every manifest file, ours or not, in no order."""
        for host in _folders(self.root):
            for namespace in _folders(host.path):
                for model in _folders(namespace.path):
                    for tag in _listing(model.path):
                        name = name_from_path((host.name, namespace.name, model.name, tag.name))
                        if name is None or not tag.is_file(follow_symlinks=False):
                            continue
                        with contextlib.suppress(FileNotFoundError):  # Deleted since it was listed.
                            yield _entry(name, tag.path, tag.stat(follow_symlinks=False))

    def locate(self, name: Name) -> Name:
        """The name in the letter case the store has for it, part by part; unknown parts stay as given."""
        folder, parts = self.root, list(name.parts)
        for index, part in enumerate(parts):
            stored = _stored_case(folder, part)
            if stored is None:
                break
            parts[index] = stored
            folder = folder / stored
        return Name(*parts)

    def find(self, name: Name) -> StoredManifest | None:
        """The manifest file of a name, whatever its letter case."""
        located = self.locate(name)
        path = self.path(located)
        try:
            status = path.lstat()
        except OSError:  # Absent, or a name longer than the file system takes.
            return None
        return _entry(located, str(path), status) if stat.S_ISREG(status.st_mode) and self.is_inside(path) else None

    def path(self, name: Name) -> Path:
        """Where the manifest of a name belongs. A `Name` is valid, so this is always inside the folder."""
        return self.root.joinpath(*name.parts)

    def read(self, entry: StoredManifest) -> ManifestFile:
        """Raises Damaged where the file is no manifest, FileNotFoundError where it is gone."""
        data = read_file(entry.path)
        return ManifestFile(entry, decode_manifest(data), hashlib.sha256(data).hexdigest())

    def ours(self, torn: list[str]) -> Iterator[ManifestFile]:
        """Our models; `torn` takes the names whose manifests cannot be read."""
        for entry in self.entries():
            try:
                stored = self.read(entry)
            except FileNotFoundError:
                continue
            except (Damaged, OSError):
                torn.append(entry.name.short)
                continue
            if stored.manifest.is_ours:
                yield stored

    def in_use(self) -> InUse:
        """What manifests mention: reads every file of the folder, understood or not, behind links too.

        Raises Damaged where something cannot be read: what it mentions must not be removed.
        """
        blobs: set[str] = set()
        manifests: set[str] = set()
        for path in _files_below(self.root):
            try:
                data = read_file(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise Damaged(f"cannot read {reason(error, self.root.parent)}; no blob was removed") from error
            blobs |= digests_in(data)
            manifests.add(hashlib.sha256(data).hexdigest())
        return InUse(blobs, manifests)

    def write(self, name: Name, data: bytes) -> tuple[StoredManifest, set[str]]:
        """Write `data` as the manifest of the name; also returns the digests that the one before mentioned.

        The name keeps the letter case the folder already has. Only while nobody else changes manifests.
        """
        located = self.locate(name)
        path = self.path(located)
        before = _mentioned(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_atomically(path, data)
        return _entry(located, str(path), path.stat()), before

    def remove(self, entry: StoredManifest) -> set[str]:
        """Forget a name; returns the digests that it mentioned. Only while nobody else changes manifests."""
        path = Path(entry.path)
        digests = _mentioned(path)
        path.unlink(missing_ok=True)
        for folder in path.parents[:3]:
            try:
                folder.rmdir()
            except OSError:
                break  # Not empty: other tags, models or namespaces live here.
        return digests

    def require_writable(self, name: Name) -> None:
        """Raises InvalidName where the disk can take no file for this name."""
        if any(len(part.encode()) > _LONGEST_FILE_NAME for part in name.parts):
            raise InvalidName(name.short, f"cannot store {name.short}: the name is too long for a file")
        if not self.is_inside(self.path(self.locate(name))):
            raise InvalidName(name.short, f"{name.short} leads out of the model store through a link")

    def sweep(self) -> int:
        """Remove manifests that a killed process had not renamed yet; only while nobody changes them. Bytes freed."""
        freed = 0
        for path in self.root.rglob(".*"):
            if _UNNAMED.fullmatch(path.name) and path.is_file() and self.is_inside(path):
                freed += path.stat().st_size
                path.unlink()
        return freed

    def is_inside(self, path: Path) -> bool:
        """No link on the way leads out of the manifests folder."""
        return path.parent.resolve() == self.root.resolve().joinpath(*path.parent.relative_to(self.root).parts)


def _files_below(folder: Path) -> Iterator[str]:
    """Every file of a tree, links followed, each real folder once."""

    def give_up(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise Damaged(f"cannot read {reason(error, folder.parent)}; no blob was removed") from error

    seen: set[str] = set()
    for current, subfolders, files in os.walk(folder, followlinks=True, onerror=give_up):
        real = os.path.realpath(current)
        if real in seen:
            subfolders.clear()
            continue
        seen.add(real)
        yield from (f"{current}{os.sep}{file}" for file in files)


def _mentioned(path: Path) -> set[str]:
    try:
        return digests_in(path.read_bytes())
    except OSError:
        return set()


def _listing(path: str | Path) -> list[os.DirEntry[str]]:
    """What a folder holds; nothing where it cannot be read, or is gone since it was listed itself."""
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except OSError:
        return []


def _folders(path: str | Path) -> list[os.DirEntry[str]]:
    return [entry for entry in _listing(path) if entry.is_dir(follow_symlinks=False)]


def _stored_case(folder: Path, part: str) -> str | None:
    """The entry of a folder that equals `part` but for letter case; the exact one where several do."""
    names = [entry.name for entry in _listing(folder)]
    if part in names:
        return part
    return next((name for name in sorted(names) if name.lower() == part.lower()), None)


def _entry(name: Name, path: str, status: os.stat_result) -> StoredManifest:
    return StoredManifest(name, path, status.st_mtime_ns, status.st_size, status.st_ino)


def _write_atomically(path: Path, data: bytes) -> None:
    # A leading dot is no valid tag: a walk never takes the temporary file for a model; `prune` knows it by its name.
    temporary = path.parent / f".{uuid.uuid4().hex}"
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)
