"""Views: a model as the folder of files that model code expects, made of links to blobs.

`views/<manifest digest>/config.json, model.safetensors, ...`: hard links, so they cost nothing and stay readable for
a runner that has them open when the model is deleted; symbolic links or copies where hard links do not reach. A view
is derived: it is checked at every use and built again when something is missing or altered.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from pathlib import Path

from omlx_registry.blobs import BlobStore
from omlx_registry.errors import Damaged
from omlx_registry.manifest import FILE, WEIGHTS, Layer, Manifest
from omlx_registry.model_files import is_safe_path


class Views:
    """The folder of materialized models."""

    def __init__(self, folder: Path, blobs: BlobStore) -> None:
        self._folder = folder
        self._blobs = blobs

    def path(self, digest: str) -> Path:
        """Where the view of the manifest with this digest (64 hex) is or would be."""
        return self._folder / digest

    def materialize(self, manifest: Manifest, digest: str) -> Path:
        """The model's folder, intact. Raises Damaged where a blob is missing or truncated."""
        target, files = self.path(digest), model_files(manifest)
        if not files:
            raise Damaged("the manifest names no file of a model")
        for layer in files.values():
            if self._blobs.size(layer.digest) != layer.size:
                raise Damaged(f"{layer.name} of the model is missing or incomplete: pull or create the model again")
        if not self._is_intact(target, files):
            self._build(target, files)
        return target

    def materialize_layers(self, layers: list[Layer], folder: Path) -> None:
        """Build a folder of the weights and files among the layers elsewhere, for a conversion to read."""
        for layer in layers:
            if layer.media_type in {WEIGHTS, FILE} and is_safe_path(layer.name):
                path = folder / layer.name
                path.parent.mkdir(parents=True, exist_ok=True)
                _link(self._blobs.path(layer.digest), path)

    def keep_only(self, digests: set[str]) -> None:
        """Remove the views of all other manifests."""
        if self._folder.is_dir():
            for path in self._folder.iterdir():
                if path.name not in digests:
                    _discard(path)

    def _is_intact(self, target: Path, files: dict[str, Layer]) -> bool:
        for relative, layer in files.items():
            try:
                have = (target / relative).stat()
                blob = self._blobs.path(layer.digest).stat()
            except OSError:
                return False
            same = have.st_ino == blob.st_ino and have.st_dev == blob.st_dev
            # A copy (no hard links here) was made after its blob; one that is older or of another size is not it.
            copied = have.st_nlink == 1 and have.st_size == blob.st_size and have.st_mtime_ns == blob.st_mtime_ns
            if not (same or copied):
                return False
        return True

    def _build(self, target: Path, files: dict[str, Layer]) -> None:
        fresh = self._folder / f".{uuid.uuid4().hex}"
        try:
            for relative, layer in files.items():
                path = fresh / relative
                path.parent.mkdir(parents=True, exist_ok=True)
                _link(self._blobs.path(layer.digest), path)
            for _ in range(10):
                try:
                    fresh.rename(target)
                except OSError:
                    # A damaged view, or one another process has just built: out of the way in one step, then again.
                    _discard(target)
                else:
                    return
            raise Damaged(f"cannot build the model folder {target.name}")
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


def model_files(manifest: Manifest) -> dict[str, Layer]:
    """Relative path in the model folder → layer. Paths that would leave the folder raise Damaged."""
    files: dict[str, Layer] = {}
    for layer in manifest.layers:
        if layer.path is None:
            continue
        if not is_safe_path(layer.path):
            raise Damaged(f"the manifest names an unsafe path: {layer.path!r}")
        files[layer.path] = layer
    return files


def _discard(folder: Path) -> None:
    """Out of the way in one step, so that nobody finds half a model; then away."""
    stale = folder.with_name(f".{uuid.uuid4().hex}")
    with contextlib.suppress(OSError):  # Another process was first.
        folder.rename(stale)
    shutil.rmtree(stale, ignore_errors=True)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        try:
            target.symlink_to(source.resolve())
        except OSError:
            shutil.copy2(source, target)
