"""A least-recently-used cache, bounded by the number of entries, by their total size, or by both."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LRUCache(Generic[K, V]):
    """`size_of` returns an entry's size; without it all sizes are 0. Not thread-safe."""

    def __init__(
        self, *, max_entries: float = math.inf, max_size: float = math.inf, size_of: Callable[[V], int] | None = None
    ) -> None:
        self.max_entries = max_entries
        self.max_size = max_size
        self.size = 0
        """The sum over all entries."""
        self._size_of = size_of
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        """Whether there is an entry. Does not count as use."""
        return key in self._entries

    def get(self, key: K) -> V | None:
        """The entry, which becomes the most recently used."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: K, value: V) -> None:
        """Add or replace an entry. A value larger than the cache is not kept."""
        self.remove(key)
        size = self._size_of(value) if self._size_of is not None else 0
        if size > self.max_size:
            return
        self._entries[key] = (value, size)
        self.size += size
        while len(self._entries) > self.max_entries or self.size > self.max_size:
            self.remove(next(iter(self._entries)))

    def remove(self, key: K) -> bool:
        """Remove an entry; returns whether there was one."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        self.size -= entry[1]
        return True

    def clear(self) -> None:
        self._entries.clear()
        self.size = 0
