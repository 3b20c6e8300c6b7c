"""The pins of the index: records that named sessions keep from being evicted."""

from __future__ import annotations

from collections.abc import Sequence

from omlx_cache.database import Database
from omlx_cache.records import Kind, RecordName


class PromptPins:
    """Part of an `Index`, in its thread."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._db = database.connection

    def pin(self, session: str, namespace: bytes, keys: Sequence[bytes]) -> None:
        """Keep the records under these keys from being evicted, under a name, in place of those it had before."""
        with self._database.transaction():
            self._db.execute("DELETE FROM sessions WHERE name = ?", (session,))
            self._db.executemany("INSERT INTO sessions VALUES (?, ?, ?)", [(session, namespace, key) for key in keys])

    def remove(self, session: str) -> bool:
        """Forget a session; its records stay until they are evicted. False when there is none of that name."""
        return self._db.execute("DELETE FROM sessions WHERE name = ?", (session,)).rowcount > 0

    def remove_all(self, namespace: bytes | None) -> None:
        """Forget the sessions of one model, or of all."""
        where, values = ("", ()) if namespace is None else (" WHERE namespace = ?", (namespace,))
        self._db.execute(f"DELETE FROM sessions{where}", values)  # noqa: S608

    def sessions(self) -> list[tuple[str, str, int]]:
        """(name, name of its model, bytes on disk) of each session."""
        rows = self._db.execute(
            "SELECT sessions.name, coalesce(models.name, ''), coalesce(sum(bytes), 0) FROM sessions"
            " LEFT JOIN records USING (key) LEFT JOIN models ON models.namespace = sessions.namespace"
            " GROUP BY sessions.name ORDER BY sessions.name"
        )
        return list(rows)

    def bytes_but(self, but: str) -> int:
        """Bytes on disk that all sessions but the one named `but` keep."""
        row = self._db.execute(
            "SELECT coalesce(sum(bytes), 0) FROM records WHERE key IN (SELECT key FROM sessions WHERE name != ?)",
            (but,),
        ).fetchone()
        return int(row[0])

    def names(self, session: str, namespace: bytes) -> list[RecordName]:
        """The records a session pins, in order of their tokens."""
        rows = self._db.execute(
            "SELECT records.key, records.kind FROM sessions JOIN records USING (key)"
            " WHERE sessions.name = ? AND sessions.namespace = ? AND writer = 0 ORDER BY start",
            (session, namespace),
        )
        return [RecordName(key, Kind(kind)) for key, kind in rows]
