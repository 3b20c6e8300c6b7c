"""File locks: how several processes share one store.

Two locks, both advisory `flock`s on files of the store, released by the kernel when their holder dies:
- *changing* (exclusive, milliseconds): held around every change of the set of manifests.
- *working* (shared, as long as a pull, create or upload runs): blobs may exist that no manifest names yet. Whoever
  removes unreferenced blobs must have it exclusively, and never waits for it.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the lock alone; waits for it."""
    with _opened(path) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


@contextmanager
def shared(path: Path) -> Iterator[None]:
    """Hold the lock together with other sharers; waits for an exclusive holder."""
    with _opened(path) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield


@contextmanager
def try_exclusive(path: Path) -> Iterator[bool]:
    """Hold the lock alone if that is possible at once; yields whether it is held."""
    with _opened(path) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Closing the descriptor releases the lock. Each holder has its own: threads of one process exclude each other too.
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        # What is on a disk that became read-only can still be served.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
