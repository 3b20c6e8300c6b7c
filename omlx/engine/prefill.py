"""Reading prompts: one sequence at a time, unpadded, in chunks, until its first token can be drawn.

Unpadded, because half of the hybrid models give wrong results when prompts of unequal length are padded together. A
chunk is launched and not waited for: the device works through it while the host goes on, at most one step behind.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import mlx.core as mx
from omlx_cache.store import Match, PrefixStore

from omlx.engine import caches
from omlx.engine.ranks import Ranks
from omlx.engine.scheduler import chunk_end
from omlx.engine.sequence import Sequence
from omlx.engine.tensors import launch
from omlx.engine.vision import Vision

log = logging.getLogger(__name__)


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
        self._launched: list[mx.array] = []

    def start(self, sequence: Sequence) -> None:
        """Give the sequence its caches, filled with the longest prefix the store has."""
        sequence.phase, sequence.position = "prefill", 0
        if self._store is None or sequence.made_up:
            sequence.cache = caches.new(self._model)
            return
        match = self._lookup(self._store, sequence)
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
        sequence.capture = self._store.begin(sequence.tokens, sequence.media_keys, match=match, boundaries=stops)

    def expect(self, sequence: Sequence) -> None:
        """The sequence's turn is near: start reading from disk what it will want."""
        if self._store is not None and not sequence.made_up and sequence.reading is None:
            sequence.reading = self._store.read_ahead(sequence.tokens, sequence.media_keys)

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
            sequence.capture.after_chunk(sequence.cache, end)
        self._launched += state[-1:]
        if end == total and sequence.spec.media is not None:
            sequence.spec.media.release()
        return end - start, logits[:, -1, :] if end == total else None

    def _chunk_end(self, sequence: Sequence, budget: int) -> int:
        start = sequence.position
        end = chunk_end(start, len(sequence.tokens), budget, logits_rows=self._logits_rows)
        if sequence.capture is not None:
            end = min(end, sequence.capture.chunk_end(start, budget))
        return sequence.spec.media.chunk_end(start, end) if sequence.spec.media is not None else end

    def _pictures(self, sequence: Sequence, tokens: mx.array, start: int, *, ahead: bool) -> dict[str, Any]:
        """What a model that sees wants to know beside the tokens of a chunk; nothing for all others."""
        media = sequence.spec.media
        if media is None or self._vision is None:
            return {}
        more: dict[str, Any] = {"inputs": self._vision.inputs(media, tokens, start, ahead=ahead)}
        if media.positions is not None:
            more["positions"] = mx.array(media.positions[:, None, start : start + tokens.shape[1]])
        return more

    def _lookup(self, store: PrefixStore, sequence: Sequence) -> Match:
        """The longest prefix that every rank can restore: each keeps its own share, and may have lost parts of it."""
        most = len(sequence.tokens)
        while True:
            match = store.lookup(sequence.tokens, sequence.media_keys, most=most)
            found = self._ranks.gather(match.cached_tokens, int)
            if min(found) == max(found):
                return match
            most = min(found)

    def catch_up(self, launched_before: list[mx.array]) -> None:
        """Wait for chunks of an earlier step: the host must not run ahead of the device without end."""
        mx.eval(*launched_before)

    def take_launched(self) -> list[mx.array]:
        """What was launched since the last call, for `catch_up`."""
        launched, self._launched = self._launched, []
        return launched
