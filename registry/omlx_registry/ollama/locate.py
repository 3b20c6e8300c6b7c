"""Where an Ollama keeps its models on this machine."""

from __future__ import annotations

import os
from pathlib import Path

from omlx_registry.ollama.store import OllamaStore


def candidates(folder: str = "") -> list[Path]:
    """Folders to look in, the likeliest first; only `folder` where one is named."""
    if folder:
        return [Path(folder).expanduser()]
    named = os.environ.get("OLLAMA_MODELS", "").strip(" \t\"'")
    usual = [Path.home() / ".ollama" / "models", Path("/usr/share/ollama/.ollama/models")]
    return list(dict.fromkeys([Path(named).expanduser(), *usual] if named else usual))


def locate(folder: str, own: Path) -> OllamaStore | None:
    """The first store of an Ollama among the candidates that is not our own; None where there is none."""
    return next((OllamaStore(it) for it in candidates(folder) if _is_store(it) and not _is_same(it, own)), None)


def why_none(folder: str, own: Path) -> str:
    """The sentence for a user whose Ollama was not found."""
    if any(_is_store(it) and _is_same(it, own) for it in candidates(folder)):
        return (
            "oMLX keeps its models in Ollama's folder, so their names are taken: give oMLX a folder of its own with "
            "OMLX_MODELS, then import"
        )
    return "there are no models of an Ollama here: name their folder, `omlx import --from ollama --folder PATH`"


def _is_store(folder: Path) -> bool:
    try:
        return (folder / "manifests").is_dir() and (folder / "blobs").is_dir()
    except OSError:
        return False


def _is_same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()
