"""Models that other programs already put on this machine: the Hugging Face cache and LM Studio's folders.

Folders of safetensors are registered by hard link, so they take no further space; GGUF files are converted. What cannot
be used is passed over with a reason.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from omlx_registry.folders import model_file_names
from omlx_registry.hub.gguf_choice import find_models
from omlx_registry.names import Name, is_valid

_DEEPEST: Final = 8
_LOCAL: Final = "local"
"""The organization of models whose folder names none."""


class FoundModel(msgspec.Struct, frozen=True):
    """A model: the name it gets here, its folder, and the folder its links may lead to.

    `gguf`: the GGUF file, or its first part, where it is not a folder of safetensors.
    """

    name: Name
    folder: Path
    root: Path
    gguf: Path | None = None


class PassedOver(msgspec.Struct, frozen=True):
    """What looks like a model but cannot be used; `place` is relative to the folder that was searched."""

    place: str
    reason: str


def places(environ: Mapping[str, str], home: Path) -> list[Path]:
    """The folders to look in: Hugging Face's hub cache first, then LM Studio's."""
    hf_home = Path(environ.get("HF_HOME") or Path(environ.get("XDG_CACHE_HOME") or home / ".cache") / "huggingface")
    hub = Path(environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE") or hf_home / "hub")
    return [hub, home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"]


def find(root: Path) -> list[FoundModel | PassedOver]:
    """What is below `root`, in the order of its places."""
    found: list[FoundModel | PassedOver] = []
    for place, folder in sorted(_folders(root)):
        found += _look_at(root, place, folder)
    return found


def _look_at(root: Path, place: str, folder: Path) -> Iterator[FoundModel | PassedOver]:
    """The models of one folder."""
    repository = _repository(place)
    names = model_file_names(folder)
    sizes = {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}
    ggufs = find_models(sizes)
    for model in ggufs:
        # A folder of one's own may hold several models, and files that are in none are models by themselves.
        inner = repository if place else Name("hf.co", _LOCAL, _word(model.name), "latest")
        name = msgspec.structs.replace(inner, tag=_word(model.label)) if is_valid(inner) else inner
        if len(model.paths) != model.parts:
            yield PassedOver(f"{place}/{model.name}", f"{len(model.paths)} of its {model.parts} parts are there")
        elif not is_valid(name):
            yield PassedOver(f"{place}/{model.name}", "no model name can be made of its folder's")
        else:
            yield FoundModel(name, folder, root, folder / model.paths[0])
    if "config.json" not in names:
        if not ggufs and any(name.endswith(".gguf") for name in sizes):
            yield PassedOver(place, "its GGUF files only go with a model: projectors or drafts")
    elif not any(name.endswith(".safetensors") for name in names):
        if not ggufs:
            yield PassedOver(place, "it has no weights as safetensors or GGUF")
    elif is_valid(repository):
        yield FoundModel(repository, folder, root)
    else:
        yield PassedOver(place, "no model name can be made of its folder's")


def _repository(place: str) -> Name:
    """The name for the folder `ORG/NAME`; deeper ones are joined, and one alone has no organization."""
    first, *rest = (_word(part) for part in place.split("/"))
    if not rest:
        return Name("hf.co", _LOCAL, first, "latest")
    return Name("hf.co", first, "-".join(rest), "latest")


def _word(text: str) -> str:
    """The part of a name that stands for a file's or folder's: "My Model (v2)" as "My-Model-v2"."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:80]


def _folders(root: Path) -> Iterator[tuple[str, Path]]:
    """("ORG/NAME", folder) of everything that may hold a model, in the cache's layout and in any other."""
    if not root.is_dir():
        return
    for entry in root.iterdir():
        if entry.name.startswith("models--") and entry.name.count("--") >= 2:
            snapshot = _snapshot(entry)
            if snapshot is not None:
                organization, model = entry.name.removeprefix("models--").split("--", 1)
                yield f"{organization}/{model}", snapshot
    for folder, inner, files in os.walk(root):
        place = Path(folder).relative_to(root)
        deep = len(place.parts) >= _DEEPEST
        is_model = "config.json" in files
        inner[:] = (
            [] if is_model or deep else [it for it in inner if not it.startswith((".", "models--", "datasets--"))]
        )
        if is_model or any(file.lower().endswith(".gguf") for file in files):
            yield place.as_posix() if place.parts else "", Path(folder)


def _snapshot(repository: Path) -> Path | None:
    """The snapshot that `main` names, or the newest one; None where the cache holds none of a model."""
    snapshots = repository / "snapshots"
    try:
        main = snapshots / (repository / "refs" / "main").read_text().strip()
    except OSError:
        main = snapshots / os.devnull
    candidates = [main, *sorted(snapshots.glob("*"), key=lambda path: path.stat().st_mtime, reverse=True)]
    return next((path for path in candidates if _may_be_model(path)), None)


def _may_be_model(folder: Path) -> bool:
    return (folder / "config.json").exists() or any(folder.glob("*.gguf"))
