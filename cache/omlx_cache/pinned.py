"""Named sessions: conversations whose records are not evicted from disk.

A *session* pins what is stored of one conversation under a name that people choose. It belongs to one model; a
changed model does not find it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from omlx_cache.chain import Chain
from omlx_cache.hot import HotRecord
from omlx_cache.keys import Media, unpack
from omlx_cache.plan import FREE
from omlx_cache.records import RecordName
from omlx_cache.tiers import Tiers

_WRITE_S = 5.0
"""Most time for writing what is in RAM only: the model stands still meanwhile."""
_LOAD_BYTES = 1 << 30
"""Most that one `load` reads, for the model stands still meanwhile; the rest is read when it is wanted."""
PINNED_SHARE = 0.5
"""Sessions together may keep this part of the folder's cap: the rest is for what comes next."""


class Sessions:
    """The sessions of a store's model. All methods belong to the thread that owns MLX."""

    def __init__(self, store: Tiers) -> None:
        self._store = store
        self._latest: Chain | None = None

    def note_finished(self, chain: Chain) -> None:
        """A conversation has come to rest (for `Capture`)."""
        self._latest = chain

    def save(self, name: str, tokens: Sequence[int] | None = None, media: Sequence[Media] = ()) -> int:
        """Pin what is stored of a conversation under a name; returns the number of its tokens that are kept.

        `tokens` None: the conversation that was answered last. Raises ValueError, whose message is for people, when
        nothing of it is stored, when there is no disk to keep it on, when sessions would take too much of it, or when
        it could not be written.
        """
        store = self._store
        if store.cold is None or store.cold.problem:
            raise ValueError("a session is kept on disk, and this cache has none in use")
        if tokens is None:
            if self._latest is None:
                raise ValueError("no conversation has been answered since the model was loaded")
            tokens, media = unpack(self._latest.packed), self._latest.media
        # A lookup leaves the last token out.
        chain = Chain(store.namespace, store.block_size, [*tokens, 0], media)
        _, plan = store.plan(chain, FREE)
        if not plan.position:
            raise ValueError("nothing of this conversation is stored")
        keys = list(dict.fromkeys(use.name.key for use in plan.uses))
        in_ram = [record for use in plan.uses if (record := store.hot.get(use.name)) is not None]
        size = sum(use.cold_bytes for use in plan.uses) + sum(record.nbytes for record in in_ram)
        if size + store.cold.ask(lambda index: index.pins.bytes_but(name), 0) > store.config.cold_bytes * PINNED_SHARE:
            raise ValueError("named sessions would take more than half of the space for the cache: remove one first")
        deadline = time.monotonic() + _WRITE_S
        for record in in_ram:
            store.cold.wait_for_room(record.nbytes, max(0.0, deadline - time.monotonic()))
            store.write(HotRecord(record, True, store.clock()))
        store.cold.change(lambda index: index.pins.pin(name, store.namespace, keys))
        store.cold.flush(max(0.1, deadline - time.monotonic()))
        store.collect()
        kept = store.cold.find(keys)
        if any(use.name not in kept for use in plan.uses):
            store.cold.change(lambda index: index.pins.remove(name))
            raise ValueError("the disk did not take all of it (it is slow, full, or over its write budget): try again")
        return plan.position

    def load(self, name: str) -> int:
        """Bring a session's records into RAM as far as they fit; returns the bytes read.

        Raises ValueError where this model has no session of that name.
        """
        store = self._store
        names: list[RecordName] = []
        if store.cold is not None:
            names = store.cold.ask(lambda index: index.pins.names(name, store.namespace), names)
        if not names:
            raise ValueError(f"there is no session {name!r} for these weights")
        return store.read_into_ram(names, min(store.hot.max_bytes, _LOAD_BYTES))

    def remove(self, name: str) -> None:
        """Let a session's records be evicted again."""
        if self._store.cold is not None:
            self._store.cold.change(lambda index: index.pins.remove(name))
