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
import shutil
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from omlx_registry import locks
from omlx_registry.blobs import BlobStore, BlobWriter
from omlx_registry.errors import Damaged, InvalidName, NotFound
from omlx_registry.manifest import Manifest, encode
from omlx_registry.manifest_folder import ManifestFile, ManifestFolder, StoredManifest
from omlx_registry.names import Name, parse_name
from omlx_registry.verified import VerifiedBlobs
from omlx_registry.views import Views

DEFAULT_CHECKER = "omlx_registry.load_check_worker"
UPLOAD_GRACE_S = 3600.0
"""Blobs younger than this survive a prune: a client uploads files first and creates the model from them later."""


PARTIAL_GRACE_S = 7 * 24 * 3600.0
"""Downloads that broke off can be continued this long."""


class PruneReport(msgspec.Struct, frozen=True):
    """`busy`: nothing was removed because somebody is making a model."""

    removed: int = 0
    freed: int = 0
    busy: bool = False


class Store:
    """The folder of models. Thread-safe and safe among processes; every method is short but `verify`."""

    def __init__(self, root: Path, load_checker: str = DEFAULT_CHECKER) -> None:
        """`load_checker`: the module whose process checks that new models load: see `load_checkers`."""
        self.root = root
        self.load_checker = load_checker
        self.manifests = ManifestFolder(root / "manifests")
        self.blobs = BlobStore(root / "blobs")
        self.verified = VerifiedBlobs(self.blobs)
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
        return self.blobs.writer(digest, self.working(), self.verified.note)

    @contextmanager
    def workspace(self) -> Iterator[Path]:
        """An empty folder on the blobs' file system for files in the making; removed at the end, or by `prune`."""
        folder = self.workplaces / uuid.uuid4().hex
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    # Manifests

    def get(self, text: str) -> ManifestFile:
        """Our model of that name. Raises InvalidName, NotFound (also for foreign manifests) or Damaged."""
        name = parse_name(text)
        entry = self.manifests.find(name)
        if entry is None:
            raise NotFound(text, name.short)
        try:
            stored = self.manifests.read(entry)
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
            # Still with the lock: the next one to have it may remove the name.
            entry, before = self.manifests.write(name, data)
        return ManifestFile(entry, manifest, hashlib.sha256(data).hexdigest()), before - manifest.digests

    def require_free(self, name: Name) -> None:
        """Make sure that a model may be written under this name.

        Raises InvalidName where the name is another program's model (a GGUF one of an Ollama that shares the folder:
        overwriting it would lose it), or none the disk can take.
        """
        self.manifests.require_writable(name)
        entry = self.manifests.find(name)
        if entry is None:
            return
        with contextlib.suppress(Damaged, FileNotFoundError):  # A torn manifest is there to be replaced.
            if not self.manifests.read(entry).manifest.is_ours:
                raise InvalidName(
                    name.short,
                    f"{name.short} is a model of Ollama in the same folder, which oMLX does not overwrite: "
                    "choose another name, or give oMLX a folder of its own (OMLX_MODELS)",
                )

    def remove(self, entry: StoredManifest) -> int:
        """Forget a name, and delete the blobs that only it needed; returns the bytes freed, see `drop`."""
        with locks.exclusive(self._changing):
            digests = self.manifests.remove(entry)
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
                in_use = self.manifests.in_use()
            except Damaged:
                return 0  # `prune` says what is wrong.
            doomed = candidates - in_use.blobs
            # First the folders, which may be links to blobs: a model is there or not, never in part.
            self.views.keep_only(in_use.manifests)
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
            freed = 0 if dry_run else self.manifests.sweep()
            in_use, latest = self.manifests.in_use(), time.time() - grace_s
            # The change time, not the modification time: a blob linked in from elsewhere keeps its old one of these.
            doomed = [
                digest
                for digest, status in self.blobs.list()
                if digest not in in_use.blobs and status.st_ctime <= latest
            ]
            if dry_run:
                sizes = sum(self.blobs.size(digest) or 0 for digest in doomed)
                return PruneReport(len(doomed), sizes + self.blobs.sweep(time.time() - partial_grace_s, dry_run=True))
            freed += sum(self.blobs.remove(digest) for digest in doomed)
            freed += self.blobs.sweep(time.time() - partial_grace_s)
            shutil.rmtree(self.workplaces, ignore_errors=True)
            self.views.keep_only(in_use.manifests)
            return PruneReport(len(doomed), freed)

    def remove_damaged(self, digests: Iterable[str]) -> None:
        """Remove blobs although manifests mention them, so that pulling their models again fetches them."""
        with locks.exclusive(self._changing):
            for digest in digests:
                self.blobs.remove(digest)
