"""The index: which records the cold tier's folder holds, for all models and all processes that share it.

An SQLite database in the folder (write-ahead log, so what was committed survives a killed process). It is asked,
never loaded: opening it costs the same for ten records and a hundred thousand. It also decides who has to go: space
is *reserved* for a record, and the least recently used make room, in one transaction, before a byte is written. One
`Index` belongs to one thread; several threads and processes each open their own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path

from omlx_cache.database import Database
from omlx_cache.prompt_pins import PromptPins
from omlx_cache.records import IndexEntry, Kind, Piece, RecordName, StoredSize
from omlx_cache.schema import START_BYTES

_KEEP_GONE = 100_000
"""Evicted keys remembered for `explain`."""
_MOST_ALIKE = 512
"""Pieces with the same parent and the same beginning of tokens among which the nearest is looked for."""
_STALE_S = 600.0
"""A record that has been *being written* for this long is not coming."""


class Reserved(Enum):
    """Answer to a reservation."""

    YES = "reserved"
    PRESENT = "already there"
    TOO_LARGE = "larger than the space there is"
    OVER_BUDGET = "over the write budget of this hour"


class Index:
    """Opens or creates the database in `folder`.

    `cap`: the maximum size of the whole folder in bytes, for a process that writes much: its log may be longer.

    Raises IndexUnusableError when it has to be made anew, sqlite3.OperationalError when the folder is at fault (not
    writable, full, locked for too long).
    """

    def __init__(self, folder: Path, cap: int = 0) -> None:
        self._database = Database(folder, cap)
        self._db = self._database.connection
        self.pins = PromptPins(self._database)

    @property
    def is_new(self) -> bool:
        """Whether this opening created it."""
        return self._database.is_new

    def close(self) -> None:
        self._database.close()

    # ------------------------------------------------------------------ asking
    def version(self) -> tuple[int, int]:
        """Another one whenever anybody has changed the index."""
        return int(self._db.execute("PRAGMA data_version").fetchone()[0]), self._db.total_changes

    def find(self, keys: Sequence[bytes]) -> dict[RecordName, StoredSize]:
        """The records under these keys that are ready."""
        sizes: dict[RecordName, StoredSize] = {}
        for first in range(0, len(keys), 500):
            some = keys[first : first + 500]
            marks = ",".join("?" * len(some))
            question = f"SELECT key, kind, bytes, skip FROM records WHERE key IN ({marks}) AND writer = 0"  # noqa: S608
            rows = self._db.execute(question, some)
            sizes.update({RecordName(key, Kind(kind)): StoredSize(size, skip) for key, kind, size, skip in rows})
        return sizes

    def has(self, name: RecordName, skip: int = 0) -> bool:
        """Whether the record is there or being written, with no more tokens missing than `skip`."""
        row = self._db.execute("SELECT skip FROM records WHERE key = ? AND kind = ?", name).fetchone()
        return row is not None and row[0] <= skip

    def neighbours(self, parent: bytes, kind: Kind, packed: bytes) -> list[IndexEntry]:
        """The pieces behind `parent` next to these tokens in order: they share the longest prefixes.

        Of very many that begin alike only the latest `_MOST_ALIKE` are compared, for each has to be read.
        """
        columns = "key, kind, parent, start, tokens, media, bytes, skip"
        start = f"substr(tokens, 1, {START_BYTES})"
        here = (parent, kind, packed[:START_BYTES])
        behind = f"FROM records WHERE writer = 0 AND parent = ? AND kind = ? AND {start}"
        alike = f"SELECT {columns} {behind} = ? ORDER BY id DESC LIMIT {_MOST_ALIKE}"
        entries = []
        for than, order in (("<", "DESC"), (">=", "ASC")):
            nearest = f"SELECT * FROM ({alike}) WHERE tokens {than} ? ORDER BY tokens {order} LIMIT 1"  # noqa: S608
            row = self._db.execute(nearest, (*here, packed)).fetchone()
            if row is None:
                other = f"SELECT {columns} {behind} {than[0]} ? ORDER BY {start} {order}, tokens {order} LIMIT 1"
                row = self._db.execute(other, here).fetchone()
            if row is not None:
                entries.append(_entry(row))
        return entries

    def sizes(self, parent: bytes, kind: Kind) -> set[int]:
        """The lengths in tokens of the pieces behind `parent`."""
        # With the kind as a number, the index of states is known to serve.
        question = f"SELECT DISTINCT size FROM records WHERE parent = ? AND kind = {int(kind)}"  # noqa: S608
        rows = self._db.execute(question, (parent,))
        return {size for (size,) in rows}

    def was_evicted(self, key: bytes) -> bool:
        return bool(self._db.execute("SELECT 1 FROM gone WHERE key = ?", (key,)).fetchone())

    def other_namespaces(self, packed: bytes, namespace: bytes) -> list[str]:
        """Names of other models (or other weights of this one) that hold a prompt beginning with these tokens."""
        rows = self._db.execute(
            "SELECT DISTINCT coalesce(models.name, '') FROM records LEFT JOIN models USING (namespace)"
            " WHERE start = 0 AND tokens = ? AND namespace != ?",
            (packed, namespace),
        )
        return sorted(name for (name,) in rows)

    def recent(self, namespace: bytes, limit: int) -> list[RecordName]:
        """The model's most recently used records of prompts, latest and beginnings of chains first."""
        rows = self._db.execute(
            "SELECT key, kind FROM records WHERE namespace = ? AND writer = 0 AND kind != ?"
            " ORDER BY used DESC, start LIMIT ?",
            (namespace, Kind.FEATURES, limit),
        )
        return [RecordName(key, Kind(kind)) for key, kind in rows]

    def totals(self) -> tuple[int, int]:
        """(bytes, records) of the whole folder, reservations included."""
        size, count = self._db.execute("SELECT bytes, records FROM totals").fetchone()
        return size, count

    def by_model(self) -> list[tuple[str, str, int, int, float]]:
        """(namespace in hex, name, bytes, records, time of last use) per model, latest first."""
        rows = self._db.execute(
            "SELECT namespace, coalesce(name, ''), sum(bytes), count(*), max(used) FROM records"
            " LEFT JOIN models USING (namespace) GROUP BY namespace ORDER BY max(used) DESC"
        )
        return [(namespace.hex(), name, size, count, used) for namespace, name, size, count, used in rows]

    def all_names(self) -> list[RecordName]:
        return [RecordName(key, Kind(kind)) for key, kind in self._db.execute("SELECT key, kind FROM records")]

    def written_in_hour(self, now: float) -> int:
        """Bytes written to the folder in the clock hour of `now`, by all processes."""
        row = self._db.execute("SELECT bytes FROM written WHERE hour = ?", (int(now // 3600),)).fetchone()
        return int(row[0]) if row else 0

    # ------------------------------------------------------------------ changing
    def reserve(
        self,
        entries: Sequence[tuple[IndexEntry, float]],
        namespace: bytes,
        now: float,
        *,
        cap: int,
        hourly: int,
        unlink: Callable[[RecordName], None],
    ) -> tuple[list[Reserved], int]:
        """Make room for records of `entry.nbytes`, each last used at a time, and book them as being written.

        Returns an answer for each, and how many others had to go. One transaction for all: each costs some pages of
        the index, whatever is in it. `unlink` deletes a record's file; it is called within the transaction, so that
        space on disk is freed before it is given away. `hourly` 0: no write budget.
        """
        answers: list[Reserved] = []
        evicted = 0
        with self._database.transaction():
            for entry, used in entries:
                answer, count = self._reserve(entry, namespace, used, now, cap, hourly, unlink)
                answers.append(answer)
                evicted += count
            self._db.execute("DELETE FROM written WHERE hour < ?", (int(now // 3600) - 24 * 7,))
        return answers, evicted

    def _reserve(
        self, entry: IndexEntry, namespace: bytes, used: float, now: float, cap: int, hourly: int,
        unlink: Callable[[RecordName], None],
    ) -> tuple[Reserved, int]:  # fmt: skip
        piece, kind, size, skip = entry
        if self.has(RecordName(piece.key, kind), skip):
            return Reserved.PRESENT, 0
        if hourly and self.written_in_hour(now) + size > hourly:
            return Reserved.OVER_BUDGET, 0
        victims, freed = self._victims(excess := self.totals()[0] + size + self._database.own_bytes(cap) - cap)
        if freed < excess:
            return Reserved.TOO_LARGE, 0
        self._evict(victims, unlink)
        self._insert(entry, namespace, used, writer=os.getpid())
        self._db.execute("DELETE FROM gone WHERE key = ?", (piece.key,))
        self._db.execute(
            "INSERT INTO written VALUES (?, ?) ON CONFLICT (hour) DO UPDATE SET bytes = bytes + excluded.bytes",
            (int(now // 3600), size),
        )
        return Reserved.YES, len(victims)

    def shrink(self, cap: int, unlink: Callable[[RecordName], None]) -> int:
        """Evict until the folder fits `cap` bytes, as far as pinned records allow; returns how many had to go."""
        with self._database.transaction():
            victims, _ = self._victims(self.totals()[0] + self._database.own_bytes(cap) - cap)
            self._evict(victims, unlink)
        return len(victims)

    def _victims(self, excess: int) -> tuple[list[RecordName], int]:
        """Least recently used records worth `excess` bytes or all there are, ends of chains first; and their bytes."""
        victims: list[RecordName] = []
        freed = 0
        if excess > 0:
            rows = self._db.execute(
                "SELECT key, kind, bytes FROM records WHERE writer = 0 AND key NOT IN (SELECT key FROM sessions)"
                " ORDER BY used, start DESC"
            )
            for key, kind, size in rows:
                victims.append(RecordName(key, Kind(kind)))
                freed += size
                if freed >= excess:
                    break
        return victims, freed

    def _evict(self, victims: list[RecordName], unlink: Callable[[RecordName], None]) -> None:
        for victim in victims:
            unlink(victim)
        self._db.executemany("DELETE FROM records WHERE key = ? AND kind = ?", victims)
        self._db.executemany("INSERT OR IGNORE INTO gone (key) VALUES (?)", [(victim.key,) for victim in victims])
        if victims:
            self._db.execute("DELETE FROM gone WHERE id <= (SELECT max(id) FROM gone) - ?", (_KEEP_GONE,))

    def adopt(self, entry: IndexEntry, namespace: bytes, used: float) -> None:
        """Book a record whose file is there already."""
        with self._database.transaction():
            if not self.has(RecordName(entry.piece.key, entry.kind), entry.skip):
                self._insert(entry, namespace, used, writer=0)

    def _insert(self, entry: IndexEntry, namespace: bytes, used: float, writer: int) -> None:
        piece, kind, size, skip = entry
        row = (
            piece.key, kind, namespace, piece.parent, piece.start, piece.size, skip, piece.packed, piece.media, size,
            used, writer,
        )  # fmt: skip
        self._db.execute(
            "INSERT INTO records (key, kind, namespace, parent, start, size, skip, tokens, media, bytes, used, writer)"
            " VALUES (?,?,?,?,?,?,?,?,?,?,?,?)",
            row,
        )

    def commit(self, names: Sequence[RecordName]) -> list[RecordName]:
        """The files of these records are complete. Returns those whose reservation was lost: their files must go."""
        update = "UPDATE records SET writer = 0 WHERE key = ? AND kind = ? AND writer = ?"
        with self._database.transaction():
            return [name for name in names if self._db.execute(update, (*name, os.getpid())).rowcount == 0]

    def abandon(self, names: Sequence[RecordName]) -> None:
        """These records could not be written."""
        rows = [(*name, os.getpid()) for name in names]
        with self._database.transaction():
            self._db.executemany("DELETE FROM records WHERE key = ? AND kind = ? AND writer = ?", rows)

    def remove(self, names: Iterable[RecordName]) -> None:
        """Forget records that are ready."""
        with self._database.transaction():
            self._db.executemany("DELETE FROM records WHERE key = ? AND kind = ? AND writer = 0", list(names))

    def remove_unfinished(self, now: float, lives: Callable[[int], bool], unlink: Callable[[RecordName], None]) -> int:
        """Forget records whose writer is gone, or has taken too long to be coming; returns how many."""
        with self._database.transaction():
            rows = self._db.execute("SELECT key, kind, writer, used FROM records WHERE writer != 0").fetchall()
            lost = [
                RecordName(key, Kind(kind))
                for key, kind, pid, since in rows
                if not lives(pid) or now - since > _STALE_S
            ]
            for name in lost:
                unlink(name)
            self._db.executemany("DELETE FROM records WHERE key = ? AND kind = ?", lost)
        return len(lost)

    def touch(self, used: Mapping[RecordName, float]) -> None:
        """Mark records as used at these times."""
        rows = [(moment, *name) for name, moment in used.items()]
        with self._database.transaction():
            self._db.executemany("UPDATE records SET used = ? WHERE key = ? AND kind = ?", rows)

    def name_model(self, namespace: bytes, name: str, fingerprint: str = "") -> None:
        """Note whose records a namespace holds: a name for people, and what all names of the same weights share."""
        with self._database.transaction():
            self._db.execute("INSERT OR REPLACE INTO models VALUES (?, ?)", (namespace, name))
            self._db.execute("INSERT OR REPLACE INTO fingerprints VALUES (?, ?)", (namespace, fingerprint))

    def fingerprints(self) -> dict[str, str]:
        """By namespace in hex; older entries have none."""
        rows = self._db.execute("SELECT namespace, fingerprint FROM fingerprints")
        return {namespace.hex(): fingerprint for namespace, fingerprint in rows}

    def names_in(self, namespace: bytes | None) -> list[RecordName]:
        """All ready records of one model, or of all."""
        where, values = ("", ()) if namespace is None else (" AND namespace = ?", (namespace,))
        rows = self._db.execute(f"SELECT key, kind FROM records WHERE writer = 0{where}", values)  # noqa: S608
        return [RecordName(key, Kind(kind)) for key, kind in rows]


def _entry(row: tuple[bytes, int, bytes, int, bytes, bytes, int, int]) -> IndexEntry:
    key, kind, parent, start, tokens, media, size, skip = row
    return IndexEntry(Piece(key, parent, start, tokens, media), Kind(kind), size, skip)
