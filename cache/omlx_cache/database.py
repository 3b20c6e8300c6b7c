"""The database of the index: an SQLite file in the cold tier's folder.

Its write-ahead log keeps what was committed when a process is killed. Every process and thread opens its own.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from omlx_cache.schema import LATER, SCHEMA, SCHEMA_VERSION, TABLES, statements

FILE = "index.sqlite"
_SLACK = 1 << 20


class IndexUnusableError(Exception):
    """The database is damaged or of another version; the message says which."""


class IndexNewerError(IndexUnusableError):
    """The database is of a newer version: it is left as it is."""


class Database:
    """Opens or creates the database in `folder`.

    `cap`: the maximum size of the whole folder in bytes, for a process that writes much: its log may be longer.

    Raises IndexUnusableError when it has to be made anew, sqlite3.OperationalError when the folder is at fault (not
    writable, full, locked for too long).
    """

    def __init__(self, folder: Path, cap: int) -> None:
        self.is_new = False
        """Whether this opening created it."""
        self._path = folder / FILE
        self.connection = sqlite3.connect(self._path, timeout=10, isolation_level=None)
        try:
            self._prepare(cap)
        except sqlite3.OperationalError:
            self.connection.close()
            raise
        except sqlite3.DatabaseError as error:
            self.connection.close()
            raise IndexUnusableError(str(error)) from error

    def _prepare(self, cap: int) -> None:
        self.connection.execute("PRAGMA page_size = 8192")
        for _ in range(100):
            try:
                self.connection.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError as error:  # Not covered by the timeout while another process opens it.
                if "locked" not in str(error):
                    raise
                time.sleep(0.02)
        self.connection.execute("PRAGMA synchronous = NORMAL")
        # Neither statement journals nor what does not fit into the cache is worth a write.
        self.connection.execute("PRAGMA temp_store = MEMORY")
        self.connection.execute("PRAGMA cache_size = -16384")
        # A page of the log is written to the database once, however often it changed: a long log saves writes. It
        # counts towards the folder's cap.
        pages = max(64, _share(cap) // 8192)
        self.connection.execute(f"PRAGMA wal_autocheckpoint = {pages}")
        self.connection.execute("PRAGMA journal_size_limit = 1048576")
        with self.transaction():
            (version,) = self.connection.execute("PRAGMA user_version").fetchone()
            if version == 0:
                for statement in statements(SCHEMA):
                    self.connection.execute(statement)
                self.connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
                self.is_new = True
            elif version > SCHEMA_VERSION:
                raise IndexNewerError(
                    f"it was written by a newer program (its version is {version}, not {SCHEMA_VERSION})"
                )
            elif version != SCHEMA_VERSION:
                raise IndexUnusableError(f"the index has version {version}, this program needs {SCHEMA_VERSION}")
            lacking = TABLES - {name for (name,) in self.connection.execute("SELECT name FROM sqlite_master")}
            if lacking:
                raise IndexUnusableError(f"the index has lost {', '.join(sorted(lacking))}")
            for statement in statements(LATER):
                self.connection.execute(statement)

    def close(self) -> None:
        self.connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All changes within it, or none."""
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            raise
        self.connection.execute("COMMIT")

    def own_bytes(self, cap: int) -> int:
        """Bytes of the database itself, and what it may grow by before the next call."""
        files = (self._path.with_name(FILE + suffix) for suffix in ("", "-wal", "-shm"))
        return max(_SLACK, _share(cap)) + sum(map(_size, files))


def _share(cap: int) -> int:
    """Bytes that the log may have."""
    return min(8 << 20, cap // 64)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
