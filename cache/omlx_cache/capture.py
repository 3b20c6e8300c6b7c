"""The capture: one sequence on its way into the store.

A *capture* follows a sequence from its prompt to its end and makes records of what its caches hold: every full block
once, and *restore points* (the incomplete block behind, and recurrent state) where they are asked for or pay. The
engine calls it from its own loop, with single-sequence caches, and lets the copies run with the rest of its work.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from omlx_cache.chain import Chain
from omlx_cache.keys import TOKEN_BYTES, Media, pack
from omlx_cache.match import Match
from omlx_cache.placement import snapshot_stops
from omlx_cache.records import Kind, Piece, Record, RecordName
from omlx_cache.stacked import StackedRow
from omlx_cache.tiers import Tiers

LiveCaches = list[Any] | StackedRow
"""A sequence's caches, or what stands for them."""


class Capture:
    """Made by `PrefixStore.begin`. Never raises for what it cannot store; it gives up and counts that."""

    def __init__(
        self,
        store: Tiers,
        tokens: Sequence[int],
        media: Sequence[Media],
        match: Match | None,
        boundaries: Iterable[int],
        note_finished: Callable[[Chain], None],
    ) -> None:
        self._store = store
        self._note_finished = note_finished
        self._layout = store.layout
        self._active = store.enabled and len(tokens) > 0
        self._sliced = sorted(store.layout.needs & {Kind.KV, Kind.WINDOW})
        self._chain = Chain(store.namespace, store.block_size, tokens if self._active else (), media)
        self._position = match.cached_tokens if match else 0
        self._partials: dict[int, list[RecordName]] = {}
        for level, name in match.partials if match else ():
            self._partials.setdefault(level, []).append(name)
        self._stops: list[int] = []
        if not self._active:
            return
        if Kind.STATE in store.layout.needs:
            self._stops = snapshot_stops(
                len(tokens), self._position, known=[*boundaries, *([match.branch] if match else [])],
                every=store.config.snapshot_every, block_size=store.block_size, state_bytes=store.layout.state_bytes,
                budget=store.hot.max_bytes or store.config.cold_bytes, least=store.config.snapshot_least,
            )  # fmt: skip
        else:
            for boundary in boundaries:
                self.stop_at(boundary)

    @property
    def first_wanted(self) -> int:
        """The earliest token that the next call may want of the caches."""
        return self._position // self._store.block_size * self._store.block_size

    def stop_at(self, position: int) -> None:
        """Make a restore point at this position of the prompt, which has not been computed yet."""
        if self._active and self._position < position <= len(self._chain) and position not in self._stops:
            insort(self._stops, position)

    def chunk_end(self, position: int, most: int) -> int:
        """Where a prefill chunk from `position` of at most `most` tokens should end.

        On a stop or a block boundary when one is within reach, else after `most` tokens.
        """
        end = position + max(1, most)
        stop = next((stop for stop in self._stops if stop > position), None)
        if stop is not None and stop <= end:
            return stop
        block = self._store.block_size
        return end // block * block if self._active and end // block * block > position else end

    def after_chunk(self, caches: LiveCaches, position: int) -> None:
        """The caches have just come to `position` within the prompt: take the blocks completed since the last call.

        Call it before the caches move on. At a stop it also makes a restore point.
        """
        if not self._active:
            return
        try:
            self._take_blocks(caches, position)
            if position in self._stops:
                self._take_point(caches, position)
        except Exception as error:
            self._give_up(error)

    def snapshot(self, caches: LiveCaches, position: int) -> None:
        """Make `position`, where the caches stand now, a restore point, partial block included."""
        if not self._active:
            return
        try:
            self._take_blocks(caches, position)
            self._take_point(caches, position)
        except Exception as error:
            self._give_up(error)

    def finish(self, caches: LiveCaches, tokens: Sequence[int]) -> None:
        """The sequence has ended: keep the rest of it. `tokens` are prompt and answer.

        The caches may lack the last tokens (they were sampled but never computed); purely recurrent caches do not count
        tokens, so for those `tokens` must be exactly what the caches have seen.
        """
        if not self._active:
            return
        try:
            length = self._layout.length(caches)
            held = len(tokens) if length is None else min(length, len(tokens))
            self._extend(tokens[:held])
            self._take_blocks(caches, held)
            self._take_point(caches, held)
            self._note_finished(self._chain)
        except Exception as error:
            self._give_up(error)
        self._active = False

    def _extend(self, tokens: Sequence[int]) -> None:
        """Let the chain go on with the answer's tokens."""
        packed = pack(tokens)
        known = self._chain.packed
        if packed[: len(known)] != known[: len(packed)]:
            raise ValueError("the sequence's tokens do not begin with its prompt")
        if len(packed) > len(known):
            self._chain.extend(tokens[len(known) // TOKEN_BYTES :])

    def _take_blocks(self, caches: LiveCaches, position: int) -> None:
        length = self._layout.length(caches)
        if length is not None and length != position:
            raise ValueError(f"the caches hold {length} tokens, not {position}")
        first = self._position // self._store.block_size
        last = position // self._store.block_size
        for kind in self._sliced:
            for piece in self._chain.blocks[first:last]:
                self._take(caches, kind, piece)
        for piece in self._chain.blocks[first:last]:
            self._replace_partials(piece)
        self._position = max(self._position, position)
        blocks = reversed(self._chain.blocks[:last])
        # The beginning of a chain is needed by all that follows it: it should be the last to be evicted.
        self._store.hot.touch(
            (RecordName(piece.key, kind) for piece in blocks for kind in self._sliced), self._store.clock()
        )

    def _take_point(self, caches: LiveCaches, position: int) -> None:
        if position < 1:
            return
        if position > len(self._chain):
            raise ValueError(f"position {position} lies behind the {len(self._chain)} tokens that are known")
        piece = self._chain.piece_ending(position)
        if piece.size < self._store.block_size:
            taken = [RecordName(piece.key, kind) for kind in self._sliced if self._take(caches, kind, piece)]
            self._replace_partials(piece)
            self._partials.setdefault(piece.start // self._store.block_size, []).extend(taken)
        if Kind.STATE in self._layout.needs and not self._store.holds(RecordName(piece.key, Kind.STATE)):
            assert not isinstance(caches, StackedRow)  # only for models without state
            arrays, meta = self._layout.capture_state(caches)
            self._store.keep(self._record(piece, Kind.STATE, arrays, meta))

    def _take(self, caches: LiveCaches, kind: Kind, piece: Piece) -> bool:
        """Store what the caches still hold of a piece, if no tier has as much of it; False when nothing was stored."""
        skip = max(0, self._layout.first_held(caches, kind) - piece.start)
        if skip >= piece.size or self._store.holds(RecordName(piece.key, kind), skip):
            return False
        arrays = self._layout.capture(caches, kind, piece.start + skip, piece.end)
        self._store.keep(self._record(piece, kind, arrays, skip=skip))
        return True

    def _record(self, piece: Piece, kind: Kind, arrays: tuple[Any, ...], meta: str = "", skip: int = 0) -> Record:
        self._layout.start(arrays)
        return Record(piece, kind, arrays, sum(array.nbytes for array in arrays), meta, skip)

    def _replace_partials(self, piece: Piece) -> None:
        """More of a block is stored now than before: shorter pieces of it are of no more use.

        Where recurrent layers have a snapshot at the end of a shorter piece, what windowed layers held there stays with
        it until the block is complete: longer pieces may be found in its place that have forgotten it.
        """
        level = piece.start // self._store.block_size
        shorter = self._partials.pop(level, [])
        if Kind.STATE in self._layout.needs and piece.size < self._store.block_size:
            self._partials[level] = [name for name in shorter if name.kind == Kind.WINDOW]
            shorter = [name for name in shorter if name.kind != Kind.WINDOW]
        covered = [
            name for name in shorter if name.key != piece.key and self._store.holds(RecordName(piece.key, name.kind))
        ]
        if covered:
            self._store.forget(covered)

    def _give_up(self, error: Exception) -> None:
        # Storing is a convenience: a sequence that cannot be stored is still answered.
        self._active = False
        self._store.capture_failed(error)
