"""Taking models in: the files of a model folder, on disk or already blobs, become the layers of a model.

Only data files a model needs are taken, never code or other weight formats (`model_files.select` decides). Symbolic
links are followed only to where the caller allows it (a Hugging Face cache is made of links): elsewhere they could
smuggle any file of the machine in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from omlx_registry.assemble import Overrides, Texts, assemble, text_layers
from omlx_registry.blobs import BlobStore, Transfer, canonical_digest
from omlx_registry.errors import InvalidModel
from omlx_registry.manifest import FILE, LICENSE, WEIGHTS, Layer
from omlx_registry.manifest_folder import ManifestFile
from omlx_registry.model_files import select
from omlx_registry.names import Name
from omlx_registry.store import Store

_LICENSE_FILES: Final = frozenset({"license", "license.txt", "license.md", "licence", "licence.txt", "licence.md"})


def add_model_folder(
    store: Store,
    name: Name,
    folder: Path,
    *,
    overrides: Overrides | None = None,
    texts: Texts | None = None,
    transfer: Transfer = "link",
    trusted: Iterable[Path] = (),
) -> ManifestFile:
    """Register the model in `folder` (config.json, tokenizer.json, *.safetensors, chat_template.jinja ...).

    Blocking: it hashes every file. `trusted`: further folders that links may lead to. Raises InvalidModel where the
    folder holds no model or a link leaves it; the store is then as before.
    """
    new: set[str] = set()
    try:
        with store.working():
            files = {}
            for relative in model_file_names(folder):
                placed = store.blobs.put_file(checked_path(folder, relative, trusted), transfer)
                files[relative] = placed.digest
                if placed.new:
                    new.add(placed.digest)
            return add_model_blobs(store, name, files, overrides=overrides, texts=texts)
    except BaseException:
        store.drop(new)
        raise


def add_model_blobs(
    store: Store,
    name: Name,
    files: Mapping[str, str],
    *,
    overrides: Overrides | None = None,
    texts: Texts | None = None,
) -> ManifestFile:
    """Register the model whose files are blobs already: relative path → digest, any file that is not needed left out.

    Whoever put the blobs there holds `Store.working()` until this returns. Raises InvalidModel.
    """
    with store.working():
        layers = file_layers(store.blobs, files)
        texts = texts or Texts()
        if texts.licenses:
            layers = [layer for layer in layers if layer.media_type != LICENSE]
        layers += [layer for layer, _ in text_layers(store.blobs, texts)]
        stored, replaced = assemble(store, name, layers, overrides or Overrides())
    store.drop(replaced)
    return stored


def file_layers(blobs: BlobStore, files: Mapping[str, str]) -> list[Layer]:
    """Layers for those of the files (relative path → digest) that a model needs. Raises InvalidModel."""
    layers = []
    for path in select(files):
        digest = canonical_digest(files[path])
        size = blobs.size(digest)
        if size is None:
            raise InvalidModel(f"blob {digest} of {path} is not there: upload it first")
        if path.lower() in _LICENSE_FILES:
            layers.append(Layer(LICENSE, digest, size))
        else:
            layers.append(Layer(WEIGHTS if path.endswith(".safetensors") else FILE, digest, size, name=path))
    if not any(layer.media_type == WEIGHTS for layer in layers):
        raise InvalidModel("no safetensors files found")
    return layers


def model_file_names(folder: Path) -> list[str]:
    """The files of the folder that belong to the model, as relative paths with `/`, weights last."""
    if not folder.is_dir():
        raise InvalidModel(f"no such folder: {folder}")
    paths = (path for pattern in ("*", "*/*") for path in folder.glob(pattern))
    return select(path.relative_to(folder).as_posix() for path in paths if path.is_file())


def checked_path(folder: Path, relative: str, trusted: Iterable[Path] = ()) -> Path:
    """The real file behind a name in the folder; raises InvalidModel where a link leads out of it."""
    real = (folder / relative).resolve()
    if not any(real.is_relative_to(root.resolve()) for root in (folder, *trusted)):
        raise InvalidModel(f"insecure path: {relative}")
    return real
