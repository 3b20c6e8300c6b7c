"""*Connection limits*: how many connections may be open, and how long one may take over its request.

A connection is *unfinished* while it has no whole request that is being answered: it is silent, in the middle of a head
or a body, or idle after an answer. Unfinished connections end after a time, and they may have half of all places: where
one more comes, the one that was silent for longest is closed. Where every place is taken by requests that are being
answered, a new connection gets 503.
"""

from __future__ import annotations

import resource
from typing import NamedTuple, Protocol

_OPEN_FILES = 8192
_MOST_REFUSED = 16
"""Connections that wait to hear that there are too many."""


class Times(NamedTuple):
    """How long a connection may take, in s."""

    first_byte: float = 60.0
    head: float = 30.0
    """From its first byte to its last."""
    body: float = 60.0
    """For each `BODY_PIECE` bytes of it, while the server reads it."""
    answer: float = 600.0
    """Without taking a byte of the answer that waits to be sent."""


BODY_PIECE = 4096


class Droppable(Protocol):
    """A connection, as far as its limits go."""

    def drop(self) -> None:
        """Close it at once."""


class Connections:
    """All open connections of a server. `most`: how many there may be."""

    def __init__(self, most: int, times: Times | None = None) -> None:
        self.most = most
        self.times = times or Times()
        self._open: set[Droppable] = set()
        self._refused: set[Droppable] = set()
        self._unfinished: dict[Droppable, None] = {}
        """The one that was silent for longest is first."""

    def opened(self, connection: Droppable) -> bool:
        """Take a new connection; False: it is one too many."""
        if len(self._open) >= self.most and not self._drop_one():
            return False
        self._open.add(connection)
        return True

    def refused(self, connection: Droppable) -> bool:
        """A connection that was one too many may stay until it has been told so; False: too many of those."""
        if len(self._refused) >= _MOST_REFUSED:
            return False
        self._refused.add(connection)
        return True

    def closed(self, connection: Droppable) -> None:
        self._refused.discard(connection)
        self._open.discard(connection)
        self._unfinished.pop(connection, None)

    def heard(self, connection: Droppable, *, unfinished: bool) -> None:
        """Something has happened on a connection: bytes, or the end of an answer."""
        self._unfinished.pop(connection, None)
        if unfinished and connection in self._open:
            self._unfinished[connection] = None
            if len(self._unfinished) > max(1, self.most // 2):
                self._drop_one()

    def _drop_one(self) -> bool:
        oldest = next(iter(self._unfinished), None)
        if oldest is None:
            return False
        self.closed(oldest)
        oldest.drop()
        return True


def allow_open_files() -> int:
    """Ask for as many open files as a busy server needs; returns how many connections there may be of them.

    Each connection is an open file, and macOS lets a process have 256 unless it asks for more. An eighth is left for
    runners, the store and files that are sent.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (OSError, ValueError):
            pass
    files = _OPEN_FILES if soft == resource.RLIM_INFINITY else soft
    return max(8, files - max(64, files // 8))
