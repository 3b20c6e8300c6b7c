"""A cache that forgets what was used longest ago, bounded by the number of its entries, by their sizes, or by both."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LRUCache(Generic[K, V]):
    """`size_of` gives an entry's size (0 where none is given). Not safe for several threads at once."""

    def __init__(
        self, *, max_entries: float = math.inf, max_size: float = math.inf, size_of: Callable[[V], int] | None = None
    ) -> None:
        self.max_entries = max_entries
        self.max_size = max_size
        self.size = 0
        """Of all entries."""
        self._size_of = size_of
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        """Whether there is an entry; asking does not count as use."""
        return key in self._entries

    def get(self, key: K) -> V | None:
        """The entry, which is now the one that was used last."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: K, value: V) -> None:
        """Keep an entry in place of an older one of this key. One that is larger than the cache is not kept."""
        self.remove(key)
        size = self._size_of(value) if self._size_of is not None else 0
        if size > self.max_size:
            return
        self._entries[key] = (value, size)
        self.size += size
        while len(self._entries) > self.max_entries or self.size > self.max_size:
            self.remove(next(iter(self._entries)))

    def remove(self, key: K) -> bool:
        """Whether there was such an entry."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        self.size -= entry[1]
        return True

    def clear(self) -> None:
        self._entries.clear()
        self.size = 0
