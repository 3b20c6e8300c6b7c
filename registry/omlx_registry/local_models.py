"""Models that other programs already put on this machine: the Hugging Face cache and LM Studio's folders.

They are registered by hard link, so they take no further space; what is no MLX model is passed over with a reason.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from omlx_registry.folders import model_file_names
from omlx_registry.names import Name, is_valid


class FoundModel(msgspec.Struct, frozen=True):
    """A folder with a model: the name it gets here, and the folder its links may lead to."""

    name: Name
    folder: Path
    root: Path


def places(environ: Mapping[str, str], home: Path) -> list[Path]:
    """The folders to look in: Hugging Face's hub cache first, then LM Studio's."""
    hf_home = Path(environ.get("HF_HOME") or Path(environ.get("XDG_CACHE_HOME") or home / ".cache") / "huggingface")
    hub = Path(environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE") or hf_home / "hub")
    return [hub, home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"]


def find(root: Path) -> list[FoundModel]:
    """Models with safetensors below `root`, in the order of their names."""
    found = []
    for repository, folder in sorted(_folders(root)):
        organization, _, model = repository.partition("/")
        name = Name("hf.co", organization, model, "latest")
        if is_valid(name) and any(file.endswith(".safetensors") for file in model_file_names(folder)):
            found.append(FoundModel(name, folder, root))
    return found


def _folders(root: Path) -> Iterator[tuple[str, Path]]:
    """("ORG/NAME", folder) of everything that looks like a repository in either layout."""
    if not root.is_dir():
        return
    for entry in root.iterdir():
        if entry.name.startswith("models--") and entry.name.count("--") >= 2:
            snapshot = _snapshot(entry)
            if snapshot is not None:
                organization, model = entry.name.removeprefix("models--").split("--", 1)
                yield f"{organization}/{model}", snapshot
        elif entry.is_dir() and not entry.name.startswith("."):
            for model_folder in entry.iterdir():
                if model_folder.is_dir() and (model_folder / "config.json").exists():
                    yield f"{entry.name}/{model_folder.name}", model_folder


def _snapshot(repository: Path) -> Path | None:
    """The snapshot that `main` names, or the newest one; None where the cache holds none with a configuration."""
    snapshots = repository / "snapshots"
    try:
        main = snapshots / (repository / "refs" / "main").read_text().strip()
    except OSError:
        main = snapshots / os.devnull
    candidates = [main, *sorted(snapshots.glob("*"), key=lambda path: path.stat().st_mtime, reverse=True)]
    return next((path for path in candidates if (path / "config.json").exists()), None)
