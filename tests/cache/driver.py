"""A minimal engine for the cache's tests: one sequence at a time, greedy, through the store's public seam."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.utils import load_model
from omlx_cache import CacheLayout, Match, Media, PrefixStore, StoreConfig

from tests.support.tiny import ARCHITECTURES, VOCABULARY, tiny_model
from tests.support.zoo import build

BLOCK = 16


@cache
def model(architecture: str) -> Any:
    """A tiny random model, loaded once per run."""
    return load_model(Path(tiny_model(architecture)))[0] if architecture in ARCHITECTURES else build(architecture)


@cache
def layout(architecture: str) -> CacheLayout:
    return CacheLayout(model(architecture))


def prompt(length: int, seed: int = 0) -> list[int]:
    """Random token ids."""
    source = random.Random(seed)
    return [source.randrange(VOCABULARY) for _ in range(length)]


def open_store(architecture: str, folder: Path | None = None, **settings: Any) -> PrefixStore:
    given: dict[str, Any] = {"fingerprint": architecture, "block_size": BLOCK, "hot_bytes": 64 << 20}
    given |= {"folder": folder, "cold_bytes": 64 << 20 if folder else 0, "snapshot_every": BLOCK} | settings
    return PrefixStore(layout(architecture), StoreConfig(**given))


def proceed(architecture: str, caches: list[Any], tokens: Sequence[int], count: int = 4) -> tuple[mx.array, list[int]]:
    """Logits [count, vocabulary] behind `tokens`, and the greedy tokens; `caches` hold what is before."""
    network = model(architecture)
    rows, found, following = [], [], list(tokens)
    for _ in range(count):
        rows.append(network(mx.array([following]), cache=caches)[0, -1])
        found.append(int(mx.argmax(rows[-1])))
        following = found[-1:]
    return mx.stack(rows), found


def compute(architecture: str, tokens: Sequence[int], answer: Sequence[int]) -> mx.array:
    """The logits that should be there when these tokens are followed by this answer: one prefill, without any store."""
    caches = layout(architecture).fresh()
    logits = model(architecture)(mx.array([[*tokens, *answer[:-1]]]), cache=caches)
    return logits[0, len(tokens) - 1 :]


def serve(
    store: PrefixStore, architecture: str, tokens: Sequence[int], count: int = 8, *, chunk: int = 48,
    media: Sequence[Media] = (), boundaries: Sequence[int] = (),
) -> tuple[Match, list[int]]:  # fmt: skip
    """One request as an engine runs it: look up, prefill in chunks, decode, hand everything to the store."""
    network = model(architecture)
    match = store.lookup(tokens, media)
    capture = store.begin(tokens, media, match=match, boundaries=boundaries)
    caches, position, logits = match.caches, match.cached_tokens, None
    while position < len(tokens):
        end = min(len(tokens), capture.chunk_end(position, chunk))
        logits = network(mx.array([list(tokens[position:end])]), cache=caches)
        position = end
        capture.after_chunk(caches, position)
    assert logits is not None
    answer: list[int] = []
    for _ in range(count):
        answer.append(int(mx.argmax(logits[0, -1])))
        logits = network(mx.array([[answer[-1]]]), cache=caches)
    capture.finish(caches, [*tokens, *answer])
    store.tick()
    return match, answer
