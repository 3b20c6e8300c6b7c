"""A partial file: a download under way, in a file of its final size, beside a record of which bytes are there.

The file is divided into *segments*, byte ranges that are each filled from front to back, several at once. How much of
each is there is written to `<name>.ranges` after every write, so a process that is killed at any moment loses at most
the piece it was writing. After a power failure the record may be ahead of the data: the hash at the end finds that.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

SMALLEST_SEGMENT: Final = 8 << 20
LARGEST_SEGMENT: Final = 64 << 20
PARALLEL: Final = 8
"""Segments that are fetched at once: what one connection to a CDN does not give, eight usually do."""

_HEADER: Final = struct.Struct("<8sQQ")
_MAGIC: Final = b"oMLXpart"
_COUNT: Final = struct.Struct("<Q")


class FileSegment(msgspec.Struct):
    """The bytes `start` to `start + length` of a file, of which the first `done` are there."""

    index: int
    start: int
    length: int
    done: int = 0

    @property
    def position(self) -> int:
        """Where the next byte belongs."""
        return self.start + self.done

    @property
    def missing(self) -> int:
        return self.length - self.done


def plan_segments(size: int) -> list[FileSegment]:
    """Segments of nearly equal length for a file of `size` bytes; a whole number per connection where it is large."""
    count = max(1, min(-(-size // SMALLEST_SEGMENT), PARALLEL * -(-size // (PARALLEL * LARGEST_SEGMENT))))
    length = -(-size // count)
    return [
        FileSegment(index, start, min(length, size - start))
        for index, start in enumerate(range(0, size, max(1, length)))
    ]


class PartialFile:
    """`with PartialFile(path, size) as partial:` opens what is there of a download, or begins it.

    Raises OSError: with ENOSPC where the disk cannot hold the whole file (not every system tells this at once).
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self.size = size
        self.segments: list[FileSegment] = []
        self.done = 0
        """Bytes that are there."""
        self._lock = threading.Lock()
        self._file = -1
        self._record = -1

    def __enter__(self) -> Self:
        record = record_path(self.path)
        counts = _recorded(self.path, record, self.size)
        self.segments = plan_segments(self.size)
        if counts is None:
            have = size_on_disk(self.path)
            if record.exists() or have > self.size:
                remove_partial(self.path)
                have = 0
            # A file without a record holds the bytes of an older version, which wrote from front to back.
            counts = [min(max(have - segment.start, 0), segment.length) for segment in self.segments]
            _write_record(record, self.size, counts)
        for segment, done in zip(self.segments, counts, strict=True):
            segment.done = done
        self.done = sum(counts)
        self._record = os.open(record, os.O_RDWR | os.O_CLOEXEC)
        # The record is there before the file has its final size: a full-sized file without one counts as complete.
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if os.fstat(self._file).st_size < self.size:
                _allocate(self._file, self.size)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def write(self, segment: FileSegment, data: bytes) -> None:
        """Put the next bytes of a segment in their place. Thread-safe; raises OSError, ValueError once it is closed."""
        with self._lock:
            if self._file < 0:
                raise ValueError("the partial file is closed")
            _write_at(self._file, data, segment.position)
            segment.done += len(data)
            self.done += len(data)
            self._note(segment)

    def empty(self, segment: FileSegment) -> None:
        """Begin a segment again."""
        with self._lock:
            if self._file < 0:
                raise ValueError("the partial file is closed")
            self.done -= segment.done
            segment.done = 0
            self._note(segment)

    def join(self) -> FileSegment:
        """Forget what is there and fill the file as one segment: for servers that send no ranges. Nobody may write."""
        for segment in self.segments:
            self.empty(segment)
        self.segments = [FileSegment(-1, 0, self.size)]
        return self.segments[0]

    def _note(self, segment: FileSegment) -> None:
        if segment.index < 0:
            return  # A server without ranges resumes nothing: there is nothing to record.
        _write_at(self._record, _COUNT.pack(segment.done), _HEADER.size + segment.index * _COUNT.size)

    def _close(self) -> None:
        with self._lock:
            for descriptor in (self._file, self._record):
                if descriptor >= 0:
                    os.close(descriptor)
            self._file = self._record = -1


def record_path(path: Path) -> Path:
    """Where the record of a partial file is."""
    return path.with_name(f"{path.name}.ranges")


def remove_partial(path: Path) -> None:
    """Remove a partial file and its record."""
    path.unlink(missing_ok=True)
    record_path(path).unlink(missing_ok=True)


def bytes_kept(path: Path, size: int) -> int:
    """How many bytes of a download of `size` bytes are there; 0 where it has not begun."""
    record = record_path(path)
    counts = _recorded(path, record, size)
    if counts is None:
        return 0 if record.exists() else min(size_on_disk(path), size)
    return sum(counts)


def bytes_allocated(path: Path) -> int:
    """Disk space that a file takes already, which may be less than its size."""
    try:
        return path.stat().st_blocks * 512
    except FileNotFoundError:
        return 0


def size_on_disk(path: Path) -> int:
    """Bytes of a file; 0 where there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _recorded(path: Path, record: Path, size: int) -> list[int] | None:
    """The bytes done per segment; None where there is no record, or one that does not belong to the file."""
    try:
        data = record.read_bytes()
    except FileNotFoundError:
        return None
    segments = plan_segments(size)
    if len(data) != _HEADER.size + _COUNT.size * len(segments):
        return None
    if _HEADER.unpack_from(data) != (_MAGIC, size, segments[0].length if segments else 0):
        return None
    counts = [count for (count,) in _COUNT.iter_unpack(data[_HEADER.size :])]
    if any(count > segment.length for segment, count in zip(segments, counts, strict=True)):
        return None
    # A record whose file is gone says nothing.
    end = max((it.start + count for it, count in zip(segments, counts, strict=True) if count), default=0)
    return counts if size_on_disk(path) >= end else None


def _write_record(record: Path, size: int, counts: Sequence[int]) -> None:
    segments = plan_segments(size)
    data = _HEADER.pack(_MAGIC, size, segments[0].length if segments else 0)
    draft = record.with_name(f"{record.name}.new")
    draft.write_bytes(data + b"".join(_COUNT.pack(count) for count in counts))
    draft.replace(record)


def _allocate(descriptor: int, size: int) -> None:
    """Give a file its final size; where the system can, with the disk space."""
    if not hasattr(os, "posix_fallocate"):
        os.truncate(descriptor, size)
        return
    before = os.fstat(descriptor).st_size
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError:
        os.truncate(descriptor, before)  # What it got of a disk that is too small.
        raise


def _write_at(descriptor: int, data: bytes, position: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, position)
        data, position = data[written:], position + written
