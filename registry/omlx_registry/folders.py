"""Folder import: the files of a model folder become the layers of a model.

Only data files a model needs are taken, never code or other weight formats. Symbolic links are followed only to where
the caller allows it (a Hugging Face cache is made of links); elsewhere they could smuggle any file of the machine in.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from omlx_registry.assemble import Overrides, Texts, assemble, text_layers
from omlx_registry.blobs import Transfer
from omlx_registry.errors import InvalidModel
from omlx_registry.hub_files import select
from omlx_registry.manifest import FILE, WEIGHTS, Layer
from omlx_registry.names import Name
from omlx_registry.store import Store, Stored

_LICENSE_NAMES = ("LICENSE", "LICENSE.txt", "LICENSE.md", "LICENCE", "NOTICE")
_LONGEST_LICENSE = 1 << 20


def add_model_folder(
    store: Store,
    name: Name,
    folder: Path,
    *,
    overrides: Overrides | None = None,
    texts: Texts | None = None,
    transfer: Transfer = "link",
    trusted: Iterable[Path] = (),
) -> Stored:
    """Register the model in `folder` (config.json, tokenizer.json, *.safetensors, chat_template.jinja ...).

    Blocking: it hashes every file. `trusted`: further folders that links may lead to. Raises InvalidModel where the
    folder holds no model or a link leaves it; the store is then as before.
    """
    texts = texts or Texts()
    new: set[str] = set()
    try:
        with store.working():
            layers: list[Layer] = []
            licenses = list(texts.licenses)
            for relative in model_file_names(folder):
                path = checked_path(folder, relative, trusted)
                if relative in _LICENSE_NAMES:
                    licenses = licenses or [path.read_text(errors="replace")[:_LONGEST_LICENSE]]
                    continue
                placed = store.blobs.put_file(path, transfer)
                new |= {placed.digest} if placed.new else set()
                media_type = WEIGHTS if relative.endswith(".safetensors") else FILE
                layers.append(Layer(media_type, placed.digest, placed.size, name=relative))
            if not any(layer.media_type == WEIGHTS for layer in layers):
                raise InvalidModel(f"no safetensors files found in {folder}")
            texts = Texts(texts.template, texts.system, texts.parameters, texts.messages, licenses)
            layers += [layer for layer, _ in text_layers(store.blobs, texts)]
            stored, replaced = assemble(store, name, layers, overrides or Overrides())
    except BaseException:
        store.drop(new)
        raise
    store.drop(replaced)
    return stored


def model_file_names(folder: Path) -> list[str]:
    """The files of the folder that belong to the model, as relative paths with `/`, weights last."""
    if not folder.is_dir():
        raise InvalidModel(f"no such folder: {folder}")
    found = [
        path.relative_to(folder).as_posix()
        for pattern in ("*", "*/*")
        for path in folder.glob(pattern)
        if path.is_file()
    ]
    return select(found)


def checked_path(folder: Path, relative: str, trusted: Iterable[Path] = ()) -> Path:
    """The real file behind a name in the folder; raises InvalidModel where a link leads out of it."""
    real = (folder / relative).resolve()
    if not any(real.is_relative_to(root.resolve()) for root in (folder, *trusted)):
        raise InvalidModel(f"insecure path: {relative}")
    return real
