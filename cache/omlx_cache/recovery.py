"""Opening a cache folder: its index as it is or made anew from the files; leavings of killed processes are removed.

One process at a time opens, under the folder's lock; the others, and stores that are at work on the folder, go on.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from omlx_cache.database import FILE, IndexNewerError, IndexUnusableError
from omlx_cache.files import RecordFiles
from omlx_cache.index import Index
from omlx_cache.record_file import DamagedError
from omlx_cache.records import IndexEntry
from omlx_cache.stats import ColdCounts

log = logging.getLogger(__name__)


def open_folder(
    folder: Path, max_bytes: int, counts: ColdCounts, clock: Callable[[], float]
) -> tuple[RecordFiles, Index]:
    """The folder's files and index, ready for use and within `max_bytes`; what had to be mended goes into `counts`.

    Raises OSError, sqlite3.Error, IndexUnusableError when the folder cannot be used.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(folder / ".lock"):
        files = RecordFiles(folder)
        try:
            index = Index(folder)
        except IndexNewerError:
            raise
        except IndexUnusableError as error:
            log.warning("the index in %s is made anew from the files: %s", folder, error)
            remove_index(folder)
            counts.index_rebuilt += 1
            index = Index(folder)
        if index.is_new:
            _adopt(files, index, counts)
        files.remove_temporary(_lives)
        counts.unfinished_removed = index.remove_unfinished(clock(), _lives, files.unlink)
        counts.evicted += index.shrink(max_bytes, files.unlink)
    return files, index


def remove_index(folder: Path) -> None:
    """Delete the index: the next opening makes it anew. Raises OSError."""
    for suffix in ("", "-wal", "-shm"):
        (folder / (FILE + suffix)).unlink(missing_ok=True)


def _adopt(files: RecordFiles, index: Index, counts: ColdCounts) -> None:
    """Book the files that are there already; their tensors are checked when they are read."""
    for path, name in files.all():
        try:
            identity = files.identity(path)
            if name != (identity.piece.key, identity.kind):
                raise DamagedError("its name does not fit its content")
            stat = path.stat()
            size = -(-stat.st_size // 4096) * 4096
            index.adopt(
                IndexEntry(identity.piece, identity.kind, size, identity.skip), identity.namespace, stat.st_mtime
            )
        except (OSError, DamagedError):
            path.unlink(missing_ok=True)
            counts.damaged += 1


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the folder's lock: one process at a time opens, repairs or rebuilds the index."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
