"""Prefill: prompts go through the model in chunks, alone or several in one forward, until they can be decoded.

A forward over several prompts pads the shorter ones behind their tokens, and only where the model's layers do not
take the padding in (`caches.padding`). It ends before the prompts' last tokens: their forward is the first decode
step of all rows together, so no output layer is computed over whole prompts. A chunk is launched and not waited for:
the device works through it while the host goes on, at most one step behind.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import mlx.core as mx
from omlx_cache.store import Match, PrefixStore

from omlx.engine import caches
from omlx.engine.batch import Newcomers
from omlx.engine.capture_rows import RowPlace, capture
from omlx.engine.ranks import Ranks
from omlx.engine.scheduler import chunk_end
from omlx.engine.sequence import Sequence
from omlx.engine.tensors import launch
from omlx.engine.vision.vision import Vision

log = logging.getLogger(__name__)
T = TypeVar("T")

Launched = tuple[list[int], mx.array]
"""The ids of a forward's sequences, and an array that is there once it is computed."""


class Prefill:
    """Runs prompts through `model`. With a `store`, known prefixes are restored and new ones captured."""

    def __init__(
        self, model: Any, *, logits_rows: int, store: PrefixStore | None, ranks: Ranks, vision: Vision | None = None
    ) -> None:
        self._model = model
        self._vision = vision
        self._logits_rows = logits_rows
        self._store = store
        self._ranks = ranks
        self._launched: list[Launched] = []

    def start(self, sequence: Sequence) -> None:
        """Give the sequence its caches, filled with the longest prefix the store has."""
        sequence.phase, sequence.position = "prefill", 0
        match = None
        if self._store is not None and not sequence.made_up:
            match = self._lookup(self._store, sequence)
        if match is None or self._store is None:
            sequence.cache = caches.new(self._model)
            return
        sequence.cache, sequence.position = match.caches, match.cached_tokens
        if sequence.generated == 0:
            sequence.cached_tokens, sequence.disk_tokens = match.cached_tokens, match.from_disk
            if match.why is not None:
                sequence.cache_reason, sequence.cache_message = match.why.reason, match.why.message
        log.debug(
            "[%s] prefix cache: %d of %d tokens restored, %d of them from disk%s",
            sequence.spec.trace, match.cached_tokens, len(sequence.tokens), match.from_disk,
            f"; the rest: {match.why.reason}" if match.why is not None else "",
        )  # fmt: skip
        stops = sequence.stops if sequence.generated == 0 else ()  # A context that has shifted is another text.
        begin = partial(self._store.begin, sequence.tokens, sequence.media_keys, match=match, boundaries=stops)
        sequence.capture = self._stored(sequence, begin)

    def expect(self, sequence: Sequence) -> None:
        """The sequence's turn is near: start reading from disk what it will want."""
        if self._store is not None and not sequence.made_up and sequence.reading is None:
            try:
                sequence.reading = self._store.read_ahead(sequence.tokens, sequence.media_keys)
            except Exception:
                log.warning("the prefix store could not read ahead", exc_info=True)

    def advance(self, sequence: Sequence, budget: int, *, decoding: bool) -> tuple[int, mx.array | None]:
        """Launch one chunk of at most `budget` tokens: how many it was and, at the prompt's end, the logits [1, V].

        While others are `decoding`, no more pictures are encoded than the chunk has.
        """
        start, total = sequence.position, len(sequence.tokens)
        end = self._ranks.decide(partial(self._chunk_end, sequence, budget), int)
        tokens = mx.array(sequence.tokens[start:end], dtype=mx.int32)[None]
        pictures = self._pictures(sequence, tokens, start, ahead=not decoding)
        assert sequence.cache is not None
        caches.make_room(sequence.cache, end - start)
        logits = self._model(tokens, cache=sequence.cache, **pictures)
        sequence.position = end
        state = caches.arrays(sequence.cache)
        launch(*state)
        if sequence.capture is not None:
            self._stored(sequence, partial(sequence.capture.after_chunk, sequence.cache, end))
        self._launched += [([sequence.id], array) for array in state[-1:]]
        if end == total and sequence.spec.media is not None:
            sequence.spec.media.release()
        return end - start, logits[:, -1, :] if end == total else None

    def chunk(self, sequence: Sequence, budget: int) -> int:
        """Tokens that a started sequence takes in a forward of several: at most `budget`, never the last one."""
        end = min(self._chunk_end(sequence, budget), len(sequence.tokens) - 1)
        return end - sequence.position

    def advance_together(self, counts: list[tuple[Sequence, int]]) -> Newcomers | None:
        """Launch one forward over the next tokens of several started sequences, as `choose_together` allows.

        Returns those of which only the last token is left, to be decoded; their caches stay together. None: no such.
        """
        rows = [sequence for sequence, _ in counts]
        lengths, sizes = [row.position for row in rows], [count for _, count in counts]
        width = max(sizes)
        tokens = [
            row.tokens[start : start + size] + [0] * (width - size)
            for row, start, size in zip(rows, lengths, sizes, strict=True)
        ]
        held = caches.gather(self._model, [(row.cache or [], row.position) for row in rows])
        caches.make_room(held, width)
        self._model(mx.array(tokens, dtype=mx.int32), cache=held)
        caches.advance(held, width)
        state = caches.arrays(held)
        launch(*state)
        self._launched += [([row.id for row in rows], array) for array in state[-1:]]
        for row, size in counts:
            row.position += size
        unfinished = [index for index, row in enumerate(rows) if row.remaining > 1]
        if self._store is not None:
            columns = caches.places(held, lengths, sizes)
            places = [RowPlace(row, index, columns[index], row.position) for index, row in enumerate(rows)]
            capture(
                self._store, held, places, lambda place, held: place.sequence.capture.after_chunk(held, place.length)
            )
        if unfinished:
            apart = caches.split(held, lengths, sizes)
            for index in unfinished:
                rows[index].cache = apart[index]
        if len(unfinished) == len(rows):
            return None
        newcomers = Newcomers(rows, caches.together(held, lengths, sizes), [row.position for row in rows])
        for row in rows:
            row.cache = row.cache if row.remaining > 1 else None
        return newcomers.without({rows[index].id for index in unfinished})

    def _chunk_end(self, sequence: Sequence, budget: int) -> int:
        start = sequence.position
        end = chunk_end(start, len(sequence.tokens), budget, logits_rows=self._logits_rows)
        if sequence.capture is not None:
            wanted = self._stored(sequence, partial(sequence.capture.chunk_end, start, budget))
            end = end if wanted is None else min(end, wanted)
        return sequence.spec.media.chunk_end(start, end) if sequence.spec.media is not None else end

    def _stored(self, sequence: Sequence, act: Callable[[], T]) -> T | None:
        """What `act` returns; where it raises, the sequence is no longer stored, and None."""
        try:
            return act()
        except Exception:
            log.warning("a prompt cannot be stored", exc_info=True)
            sequence.capture = None
            return None

    def _pictures(self, sequence: Sequence, tokens: mx.array, start: int, *, ahead: bool) -> dict[str, Any]:
        """What a model that sees wants to know beside the tokens of a chunk; nothing for all others."""
        media = sequence.spec.media
        if media is None or self._vision is None:
            return {}
        more: dict[str, Any] = {"inputs": self._vision.inputs(media, tokens, start, ahead=ahead)}
        if media.positions is not None:
            more["positions"] = mx.array(media.positions_of(start, start + tokens.shape[1])[:, None])
        return more

    def _lookup(self, store: PrefixStore, sequence: Sequence) -> Match | None:
        """The longest prefix that every rank can restore: each keeps its own share, and may have lost parts of it.

        None where the store fails: the whole prompt is computed then.
        """
        most = len(sequence.tokens)
        while True:
            try:
                match = store.lookup(sequence.tokens, sequence.media_keys, most=most)
            except Exception as error:
                if self._ranks.size > 1:
                    self._ranks.abort(error)
                log.warning("the prefix store failed: a prompt is computed without it", exc_info=True)
                return None
            cached = self._ranks.gather(match.cached_tokens, int)
            if min(cached) == max(cached):
                return match
            most = min(cached)

    def catch_up(self, launched_before: list[Launched]) -> list[tuple[list[int], Exception]]:
        """Wait for chunks of an earlier step: the host must not run ahead of the device without end.

        Returns the ids of the sequences of each forward that could not be computed.
        """
        try:
            mx.eval(*(array for _, array in launched_before))
        except Exception:
            return [failure for launched in launched_before for failure in _failure(*launched)]
        return []

    def take_launched(self) -> list[Launched]:
        """What was launched since the last call, for `catch_up`."""
        launched, self._launched = self._launched, []
        return launched


def _failure(ids: list[int], array: mx.array) -> list[tuple[list[int], Exception]]:
    try:
        mx.eval(array)
    except Exception as error:
        return [(ids, error)]
    return []
