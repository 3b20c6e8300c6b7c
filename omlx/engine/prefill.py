"""Reading prompts: one sequence at a time, unpadded, in chunks, until its first token can be drawn.

Unpadded, because half of the hybrid models give wrong results when prompts of unequal length are padded together. A
chunk is launched and not waited for: the device works through it while the host goes on, at most one step behind.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from omlx_cache.store import PrefixStore

from omlx.engine import caches
from omlx.engine.scheduler import chunk_end
from omlx.engine.sequence import Sequence
from omlx.engine.tensors import launch


class Prefill:
    """Runs prompts through `model`. With a `store`, known prefixes are restored and new ones captured."""

    def __init__(self, model: Any, *, split_last: bool, store: PrefixStore | None) -> None:
        self._model = model
        self._split_last = split_last
        self.store = store
        self._launched: list[mx.array] = []

    def start(self, sequence: Sequence) -> None:
        """Give the sequence its caches, filled with the longest prefix the store has."""
        sequence.phase, sequence.position = "prefill", 0
        if self.store is None:
            sequence.cache = caches.new(self._model)
            return
        match = self.store.lookup(sequence.tokens)
        sequence.cache, sequence.position = match.caches, match.cached_tokens
        if sequence.generated == 0:
            sequence.cached_tokens = match.cached_tokens
        sequence.capture = self.store.begin(sequence.tokens, match=match)

    def advance(self, sequence: Sequence, budget: int) -> tuple[int, mx.array | None]:
        """Launch one chunk of at most `budget` tokens: how many it was and, at the prompt's end, the logits [1, V]."""
        start, total = sequence.position, len(sequence.tokens)
        end = chunk_end(start, total, budget, split_last=self._split_last)
        if sequence.capture is not None:
            end = min(end, sequence.capture.chunk_end(start, budget))
        tokens = mx.array(sequence.tokens[start:end], dtype=mx.int32)[None]
        logits = self._model(tokens, cache=sequence.cache)
        sequence.position = end
        assert sequence.cache is not None
        state = caches.arrays(sequence.cache)
        launch(*state)
        if sequence.capture is not None:
            sequence.capture.after_chunk(sequence.cache, end)
        self._launched += state[-1:]
        return end - start, logits[:, -1, :] if end == total else None

    def catch_up(self, launched_before: list[mx.array]) -> None:
        """Wait for chunks of an earlier step: the host must not run ahead of the device without end."""
        mx.eval(*launched_before)

    def take_launched(self) -> list[mx.array]:
        """What was launched since the last call, for `catch_up`."""
        launched, self._launched = self._launched, []
        return launched
