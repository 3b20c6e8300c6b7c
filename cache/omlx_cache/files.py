"""The files of the cold tier: one per record, below a folder that several processes share.

Owner of every path in that folder but the index. A file appears under its name only when it is complete (written
beside it, then renamed); nothing is ever changed in place. Files hold what users wrote, so only their owner may read
them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from omlx_cache.record_file import MAX_HEADER, DamagedError, HostRecord, Identity, decode, decode_identity
from omlx_cache.records import Kind, RecordName

_SUFFIX = ".safetensors"
_PAGE = 4096


class RecordFiles:
    """The files below `folder`, which must exist."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._temporary = folder / "tmp"
        self._temporary.mkdir(mode=0o700, exist_ok=True)
        self._number = 0

    def path(self, name: RecordName) -> Path:
        key = name.key.hex()
        return self.folder / key[:2] / f"{key}-{name.kind.name.lower()}{_SUFFIX}"

    def write(self, name: RecordName, parts: Sequence[memoryview]) -> None:
        """Write a record's bytes. Raises OSError, and then leaves nothing behind."""
        self._number += 1
        temporary = self._temporary / f"{os.getpid()}-{id(self):x}-{self._number}"
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                for part in parts:
                    _write_all(descriptor, part)
            finally:
                os.close(descriptor)
            final = self.path(name)
            final.parent.mkdir(mode=0o700, exist_ok=True)
            temporary.replace(final)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise

    def read(self, name: RecordName) -> HostRecord:
        """The record as host bytes, checked. Raises FileNotFoundError, OSError, DamagedError."""
        with self.path(name).open("rb", buffering=0) as file:
            data = bytearray(os.fstat(file.fileno()).st_size)
            filled, view = 0, memoryview(data)
            while filled < len(data):
                count = file.readinto(view[filled:])
                if not count:
                    raise DamagedError("the file is shorter than its size says")
                filled += count
        record = decode(data)
        if RecordName(record.identity.piece.key, record.identity.kind) != name:
            raise DamagedError("it belongs to another record")
        return record

    def identity(self, path: Path) -> Identity:
        """Whose record a file is, by its header alone. Raises OSError, DamagedError."""
        with path.open("rb") as file:
            head = file.read(8)
            head += file.read(min(int.from_bytes(head, "little"), MAX_HEADER))
            return decode_identity(head, os.fstat(file.fileno()).st_size)

    def unlink(self, name: RecordName) -> None:
        """Delete the file if it is there. Raises OSError when it cannot be deleted."""
        self.path(name).unlink(missing_ok=True)

    def all(self) -> Iterator[tuple[Path, RecordName | None]]:
        """Every file in the record folders with its name; None for one that no record would have."""
        for folder in sorted(self.folder.glob("[0-9a-f][0-9a-f]")):
            for path in sorted(folder.iterdir()):
                yield path, _name_of(path)

    def remove_temporary(self, lives: object) -> int:
        """Delete half-written files of processes that are gone (`lives(pid)` says); returns how many."""
        assert callable(lives)
        count = 0
        for path in self._temporary.iterdir():
            pid = path.name.partition("-")[0]
            if not pid.isdigit() or not lives(int(pid)):
                path.unlink(missing_ok=True)
                count += 1
        return count


def size_on_disk(parts: Sequence[memoryview]) -> int:
    """Bytes a file of these parts takes, in whole pages."""
    return -(-sum(part.nbytes for part in parts) // _PAGE) * _PAGE


def _write_all(descriptor: int, part: memoryview) -> None:
    while part.nbytes:
        part = part[os.write(descriptor, part) :]


def _name_of(path: Path) -> RecordName | None:
    key, _, kind = path.name.removesuffix(_SUFFIX).partition("-")
    try:
        name = RecordName(bytes.fromhex(key), Kind[kind.upper()])
    except (ValueError, KeyError):
        return None
    return name if path.name == f"{key}-{kind}{_SUFFIX}" and path.parent.name == key[:2] else None
