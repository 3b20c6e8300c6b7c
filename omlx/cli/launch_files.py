"""Writing a tool's configuration without losing the user's: merged where it can be, with a backup to put back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omlx.cli.command import CliError
from omlx.cli.launch_tools import File

_BACKUP = ".omlx-backup"


def backup_of(path: Path) -> Path:
    return path.with_name(path.name + _BACKUP)


def text_of(file: File) -> str:
    """What `file` is to hold, with what is there now. Raises CliError where that cannot be merged."""
    if isinstance(file.content, str):
        return file.content
    return json.dumps(_merged(_read(file.path), file.content), indent=2, ensure_ascii=False) + "\n"


def write(file: File, text: str) -> Path | None:
    """Write the user's file; returns the backup of what was there, None where that was nothing or the same.

    Each change leaves a backup of its own. Raises CliError.
    """
    saved = None
    try:
        file.path.parent.mkdir(parents=True, exist_ok=True)
        if file.path.exists():
            before = file.path.read_bytes()
            if before == text.encode():
                return None
            saved = _backups(file.path)[-1]
            saved.touch(0o600)
            saved.write_bytes(before)
            shutil.copymode(file.path, saved)
        _replace(file.path, text)
    except OSError as error:
        raise CliError(f"{file.path} cannot be written: {error.strerror}") from error
    return saved


def _backups(path: Path) -> list[Path]:
    """The backups there are, the oldest first, and behind them the name of the next."""
    backups = [backup_of(path)]
    while backups[-1].exists():
        backups.append(path.with_name(f"{path.name}{_BACKUP}-{len(backups) + 1}"))
    return backups


def restore(path: Path) -> None:
    """Put the latest backup back. Raises CliError."""
    *backups, _ = _backups(path)
    if not backups:
        raise CliError(f"there is no backup of {path}")
    saved = backups[-1]
    try:
        saved.replace(path)
    except OSError as error:
        raise CliError(f"{path} cannot be restored: {error.strerror}") from error


def _replace(path: Path, text: str) -> None:
    """Never half a file. It keeps its mode; a new one is readable by its owner alone, since it may hold a key. A link's
    target is what is written."""
    path = path.resolve()
    draft = path.with_name(path.name + ".omlx-new")
    draft.unlink(missing_ok=True)
    draft.touch(0o600)
    draft.write_text(text, "utf-8")
    if path.exists():
        shutil.copymode(path, draft)
    draft.replace(path)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CliError(f"{path} cannot be read as JSON, so nothing can be added to it: {error}") from error
    if not isinstance(content, dict):
        raise CliError(f"{path} holds no JSON object, so nothing can be added to it")
    return content


def _merged(there: dict[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(there)
    for name, value in new.items():
        before = merged.get(name)
        merged[name] = _merged(before, value) if isinstance(before, dict) and isinstance(value, Mapping) else value
    return merged
