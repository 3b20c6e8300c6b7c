"""The store: manifests by name, blobs by digest, and the rules that keep the two consistent.

    manifests/<host>/<namespace>/<model>/<tag>   one manifest each
    blobs/sha256-<hex>                           content
    omlx/                                        ours alone: locks, materialized folders

A manifest is written last and only if all its blobs are there; a blob is removed only if no manifest, ours or
foreign, readable or not, mentions it and nobody is just making a model. Several processes may use one store: see
`locks`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from omlx_registry import locks
from omlx_registry.blobs import BlobStore, BlobWriter, hash_file, read_file, sync_folder
from omlx_registry.errors import Damaged, InvalidName, NotFound, reason
from omlx_registry.manifest import Manifest, decode_manifest, digests_in, encode
from omlx_registry.names import Name, name_from_path, parse_name
from omlx_registry.views import Views

DEFAULT_CHECKER = "omlx_registry.load_check_worker"
UPLOAD_GRACE_S = 3600.0
"""Blobs younger than this survive a prune: a client uploads files first and creates the model from them later."""


_LONGEST_FILE_NAME = 255
_UNNAMED = re.compile(r"\.[0-9a-f]{32}")
"""A manifest being written, before it gets its name."""
PARTIAL_GRACE_S = 7 * 24 * 3600.0
"""Downloads that broke off can be continued this long."""


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


class PruneReport(msgspec.Struct, frozen=True):
    """`busy`: nothing was removed because somebody is making a model."""

    removed: int = 0
    freed: int = 0
    busy: bool = False


class Damage(msgspec.Struct, frozen=True):
    """One blob that is not what it should be. `reason`: missing, truncated or corrupt.

    Or, with the digest "" and the reason "unreadable manifest", a name that stands for no model any more.
    """

    digest: str
    reason: str
    models: list[str]


class VerifyReport(msgspec.Struct, frozen=True):
    checked: int
    bytes: int
    damaged: list[Damage]
    repaired: bool = False
    """Corrupt blobs were dropped, so that pulling their models again fetches them."""


class Store:
    """The folder of models. Thread-safe and safe among processes; every method is short but `verify`."""

    def __init__(self, root: Path, load_checker: str = DEFAULT_CHECKER) -> None:
        """`load_checker`: the module whose process checks that new models load: see `load_checkers`."""
        self.root = root
        self.load_checker = load_checker
        self.manifests = root / "manifests"
        self.blobs = BlobStore(root / "blobs")
        self.views = Views(root / "omlx" / "views", self.blobs)
        self.workplaces = root / "omlx" / "making"
        self._owed: set[str] = set()
        """Digests to drop once nobody makes a model."""
        self._owed_lock = threading.Lock()
        self._changing = root / "omlx" / "changing.lock"
        self._working = root / "omlx" / "working.lock"

    @contextmanager
    def working(self) -> Iterator[None]:
        """Hold this while blobs exist that no manifest names yet: they are safe from `prune`, `remove` and `drop`."""
        try:
            with locks.shared(self._working):
                yield
        finally:
            if self._owed:
                self.drop(())

    def blob_writer(self, digest: str | None = None) -> BlobWriter:
        """A writer for a blob that no manifest names yet; see `BlobStore.writer`."""
        return self.blobs.writer(digest, self.working())

    @contextmanager
    def workspace(self) -> Iterator[Path]:
        """An empty folder on the blobs' file system for files in the making; removed at the end, or by `prune`."""
        folder = self.workplaces / uuid.uuid4().hex
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    # Names

    def entries(self) -> Iterator[StoredManifest]:
        """Every manifest file, ours or not, in no order."""
        for host in _folders(self.manifests):
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
        folder, parts = self.manifests, list(name.parts)
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
        return _entry(located, str(path), status) if stat.S_ISREG(status.st_mode) and self._is_inside(path) else None

    def path(self, name: Name) -> Path:
        """Where the manifest of a name belongs. A `Name` is valid, so this is always inside the store."""
        return self.manifests.joinpath(*name.parts)

    # Manifests

    def read(self, entry: StoredManifest) -> ManifestFile:
        """Raises Damaged where the file is no manifest, FileNotFoundError where it is gone."""
        data = read_file(entry.path)
        return ManifestFile(entry, decode_manifest(data), hashlib.sha256(data).hexdigest())

    def get(self, text: str) -> ManifestFile:
        """Our model of that name. Raises InvalidName, NotFound (also for foreign manifests) or Damaged."""
        name = parse_name(text)
        entry = self.find(name)
        if entry is None:
            raise NotFound(text, name.short)
        try:
            stored = self.read(entry)
        except FileNotFoundError:
            raise NotFound(text, name.short) from None
        if not stored.manifest.is_ours:
            raise NotFound(text, name.short)
        return stored

    def write(self, name: Name, manifest: Manifest) -> tuple[ManifestFile, set[str]]:
        """Let the name stand for the manifest from now on. Also returns the digests it no longer needs: see `drop`.

        The name keeps the letter case the store already has. Raises Damaged where a blob is not there, and what
        `require_free` raises.
        """
        data = encode(manifest)
        with locks.exclusive(self._changing):
            for layer in (manifest.config, *manifest.layers):
                if self.blobs.size(layer.digest) != layer.size:
                    raise Damaged(f"blob {layer.digest} is missing or incomplete: the model was not written")
            self.require_free(name)
            located = self.locate(name)
            path = self.path(located)
            before = _mentioned(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            _write_atomically(path, data)
            # Still with the lock: the next one to have it may remove the name.
            entry = _entry(located, str(path), path.stat())
        return ManifestFile(entry, manifest, hashlib.sha256(data).hexdigest()), before - manifest.digests

    def require_free(self, name: Name) -> None:
        """Make sure that a model may be written under this name.

        Raises InvalidName where the name is another program's model (a GGUF one of an Ollama that shares the folder:
        overwriting it would lose it), or none the disk can take.
        """
        path = self.path(self.locate(name))
        if any(len(part.encode()) > _LONGEST_FILE_NAME for part in name.parts):
            raise InvalidName(name.short, f"cannot store {name.short}: the name is too long for a file")
        if not self._is_inside(path):
            raise InvalidName(name.short, f"{name.short} leads out of the model store through a link")
        entry = self.find(name)
        if entry is None:
            return
        with contextlib.suppress(Damaged, FileNotFoundError):  # A torn manifest is there to be replaced.
            if not self.read(entry).manifest.is_ours:
                raise InvalidName(
                    name.short,
                    f"{name.short} is a model of Ollama in the same folder, which oMLX does not overwrite: "
                    "choose another name, or give oMLX a folder of its own (OMLX_MODELS)",
                )

    def remove(self, entry: StoredManifest) -> int:
        """Forget a name, and delete the blobs that only it needed; returns the bytes freed, see `drop`."""
        path = Path(entry.path)
        with locks.exclusive(self._changing):
            digests = _mentioned(path)
            path.unlink(missing_ok=True)
            for folder in path.parents[:3]:
                try:
                    folder.rmdir()
                except OSError:
                    break  # Not empty: other tags, models or namespaces live here.
        return self.drop(digests)

    def drop(self, digests: Iterable[str]) -> int:
        """Remove those of the blobs that nothing mentions any more; returns their bytes.

        While somebody makes a model, which may need any of them, nothing is removed: it is done when that work ends, or
        by `prune` if the work is another process's.
        """
        with self._owed_lock:
            self._owed |= set(digests)
            if not self._owed:
                return 0
        with locks.exclusive(self._changing), locks.try_exclusive(self._working) as alone:
            if not alone:
                return 0
            with self._owed_lock:
                candidates, self._owed = self._owed, set()
            try:
                survey = self._survey()
            except Damaged:
                return 0  # `prune` says what is wrong.
            doomed = candidates - survey.blobs
            # First the folders, which may be links to blobs: a model is there or not, never in part.
            self.views.keep_only(survey.manifests)
            return sum(self.blobs.remove(digest) for digest in doomed)

    def materialize(self, stored: ManifestFile) -> Path:
        """The model as a folder of files. Raises Damaged where a blob is missing or truncated."""
        with self.working():
            return self.views.materialize(stored.manifest, stored.digest)

    # Blobs

    def prune(
        self, grace_s: float = UPLOAD_GRACE_S, partial_grace_s: float = PARTIAL_GRACE_S, *, dry_run: bool = False
    ) -> PruneReport:
        """Remove blobs no manifest mentions, old partial downloads and the litter of killed processes.

        Does nothing while somebody makes a model. Raises Damaged, removing nothing, where a manifest cannot be read.
        `dry_run`: only report what would be removed.
        """
        with locks.exclusive(self._changing), locks.try_exclusive(self._working) as alone:
            if not alone:
                return PruneReport(busy=True)
            freed = 0 if dry_run else self._sweep_manifests()
            survey, latest = self._survey(), time.time() - grace_s
            # The change time, not the modification time: a blob linked in from elsewhere keeps its old one of these.
            doomed = [
                digest
                for digest, status in self.blobs.list()
                if digest not in survey.blobs and status.st_ctime <= latest
            ]
            if dry_run:
                sizes = sum(self.blobs.size(digest) or 0 for digest in doomed)
                return PruneReport(len(doomed), sizes + self.blobs.sweep(time.time() - partial_grace_s, dry_run=True))
            freed += sum(self.blobs.remove(digest) for digest in doomed)
            freed += self.blobs.sweep(time.time() - partial_grace_s)
            shutil.rmtree(self.workplaces, ignore_errors=True)
            self.views.keep_only(survey.manifests)
            return PruneReport(len(doomed), freed)

    def _sweep_manifests(self) -> int:
        """Remove manifests that a killed process had not renamed yet; only while nobody changes them. Bytes freed."""
        freed = 0
        for path in self.manifests.rglob(".*"):
            if _UNNAMED.fullmatch(path.name) and path.is_file() and self._is_inside(path):
                freed += path.stat().st_size
                path.unlink()
        return freed

    def verify(self, *, repair: bool = False, report: Callable[[int, int], None] | None = None) -> VerifyReport:
        """Hash every blob of our models again (reads everything: minutes). `repair` drops the corrupt ones.

        `report` is called with the bytes read so far and in all.
        """
        wanted: dict[str, tuple[int, list[str]]] = {}
        torn: list[str] = []
        for stored in self._ours(torn):
            for layer in (stored.manifest.config, *stored.manifest.layers):
                models = wanted.setdefault(layer.digest, (layer.size, []))[1]
                if stored.entry.name.short not in models:
                    models.append(stored.entry.name.short)
        damaged = [Damage("", "unreadable manifest", [name]) for name in sorted(torn)]
        total, done = sum(size for size, _ in wanted.values()), 0
        for digest, (size, models) in wanted.items():
            if report is not None:
                report(done, total)
            reason = self._examine(digest, size)
            done += size
            if reason is not None:
                damaged.append(Damage(digest, reason, sorted(models)))
        if report is not None:
            report(done, total)
        if repair:
            with locks.exclusive(self._changing):
                for damage in (it for it in damaged if it.digest):
                    self.blobs.remove(damage.digest)
        return VerifyReport(len(wanted), total, damaged, repair and bool(damaged))

    def _examine(self, digest: str, size: int) -> str | None:
        actual = self.blobs.size(digest)
        if actual is None:
            return "missing"
        if actual != size:
            return "truncated" if actual < size else "corrupt"
        return None if hash_file(self.blobs.path(digest))[0] == digest else "corrupt"

    def _ours(self, torn: list[str]) -> Iterator[ManifestFile]:
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

    def _survey(self) -> _Survey:
        """What is in use: reads every file under manifests/, understood or not, behind links too.

        Raises Damaged where something cannot be read: what it mentions must not be removed.
        """
        blobs: set[str] = set()
        manifests: set[str] = set()
        for path in _files_below(self.manifests):
            try:
                data = read_file(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise Damaged(f"cannot read {reason(error, self.root)}; no blob was removed") from error
            blobs |= digests_in(data)
            manifests.add(hashlib.sha256(data).hexdigest())
        return _Survey(blobs, manifests)

    def _is_inside(self, path: Path) -> bool:
        """No link on the way leads out of the manifests folder."""
        return path.parent.resolve() == self.manifests.resolve().joinpath(
            *path.parent.relative_to(self.manifests).parts
        )


class _Survey(msgspec.Struct, frozen=True):
    blobs: set[str]
    manifests: set[str]


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
