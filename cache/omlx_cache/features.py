"""Features on disk: what a vision tower made of a picture, kept by the digest of its pixels.

They share the cold tier's folder, budget and files with the prefixes. In RAM the engine keeps them itself. A picture
whose prompt has left the cache, or that comes up in another prompt, then costs a read instead of the vision tower.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omlx_cache.record_file import HostRecord, Identity
from omlx_cache.records import Kind, Piece, Record, RecordName
from omlx_cache.store import PrefixStore


class FeatureStore:
    """The features of one model's pictures, in the cold tier of `store`. Belongs to the thread that owns MLX."""

    def __init__(self, store: PrefixStore) -> None:
        self._store = store

    def keep(self, digest: bytes, features: Sequence[Any]) -> None:
        """Write features (MLX arrays) unless they are there, or the disk has no room for them now."""
        cold, name = self._store.cold, RecordName(digest, Kind.FEATURES)
        nbytes = sum(array.nbytes for array in features)
        if cold is None or cold.holds(name) or cold.room() < nbytes:
            return
        piece = Piece(digest, digest, 0, b"", b"")
        record = Record(piece, Kind.FEATURES, tuple(features), nbytes)
        identity = Identity(piece, Kind.FEATURES, self._store.namespace, 0)
        host = HostRecord(identity, self._store.layout.to_host(features), "")
        cold.write(host, self._store.clock(), record)

    def find(self, digest: bytes) -> tuple[Any, ...] | None:
        """The features of the picture with this digest; None where there are none."""
        cold, name = self._store.cold, RecordName(digest, Kind.FEATURES)
        if cold is None or not cold.holds(name):
            return None
        host = cold.read([name]).get(name)
        record = self._store.from_host(name, host) if host is not None else None
        if record is None:
            return None
        cold.touch([name])
        return record.arrays
