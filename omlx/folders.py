"""Whether a folder can be written to, asked by doing it: permissions alone do not say (read-only disks, full disks);
and small files that are whole or not there.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def why_unusable(folder: Path, *, create: bool) -> str:
    """The system's reason in lower case, "" where the folder can be used. Without `create`, a missing one is not made:
    then its nearest parent has to let it be made.
    """
    try:
        if create:
            folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=nearest_existing(folder)):
            return ""
    except OSError as error:
        return os.strerror(error.errno).lower() if error.errno else str(error)


def nearest_existing(folder: Path) -> Path:
    """The folder itself or the first parent that is there."""
    folder = folder.absolute()
    return next((path for path in (folder, *folder.parents) if path.exists()), Path(folder.anchor))


def write_atomically(file: Path, data: bytes) -> None:
    """Replace the file in one step; its folder is made where it is missing. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        draft.write_bytes(data)
        draft.replace(file)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
