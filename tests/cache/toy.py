"""A toy network whose caches can be checked by eye: what it stores for a token is a checksum of all tokens up to it.

Its caches are mlx-lm's own. Anything restored wrongly is therefore seen, in every layer, without computing logits; and
a forward pass costs nothing, so that thousands of requests can be played.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache
from omlx_cache import CacheLayout, Match, Media, PrefixStore, StoreConfig

WINDOW = 24
LAYERS = {"full": KVCache, "window": lambda: RotatingKVCache(max_size=WINDOW), "state": lambda: ArraysCache(1)}


def checksums(tokens: Sequence[int]) -> list[int]:
    """What the toy stores for each token."""
    found, value = [], 7
    for token in tokens:
        value = (value * 31 + token + 1) % 65521
        found.append(value)
    return found


class Toy:
    """`kinds` are its layers. It remembers what it has seen by the caches alone."""

    def __init__(self, kinds: Sequence[str], width: int = 2) -> None:
        self.kinds = tuple(kinds)
        self.width = width

    def make_cache(self) -> list[Any]:
        return [LAYERS[kind]() for kind in self.kinds]

    def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        ids = tokens[0].tolist()
        for kind, leaf in zip(self.kinds, cache, strict=True):
            value, rows = last_value(kind, leaf), []
            for token in ids:
                value = (value * 31 + token + 1) % 65521
                rows.append(value)
            if kind == "state":
                leaf[0] = mx.full((1, self.width), value, dtype=mx.float32)
            else:
                new = mx.broadcast_to(
                    mx.array(rows, dtype=mx.float32)[None, None, :, None], (1, 1, len(rows), self.width)
                )
                leaf.update_and_fetch(new, -new)
        return mx.zeros((1, len(ids), 1))


def last_value(kind: str, leaf: Any) -> int:
    if kind == "state":
        return 7 if leaf[0] is None else int(leaf[0][0, 0].item())
    return held(kind, leaf)[-1] if leaf.offset else 7


def held(kind: str, leaf: Any) -> list[int]:
    """The values a cache holds, oldest first; all of a token's numbers, keys and values, must agree on them."""
    keys, values = leaf.keys, leaf.values
    if kind == "window":
        keys, values = leaf._temporal_order(keys), leaf._temporal_order(values)
    else:
        keys, values = keys[:, :, : leaf.offset], values[:, :, : leaf.offset]
    first = keys[..., :1]
    assert mx.all(keys == first).item() and mx.all(values == -first).item()
    return [int(value) for value in first.reshape(-1).tolist()]


def assert_holds(toy: Toy, caches: list[Any], tokens: Sequence[int]) -> None:
    """The caches are those of exactly these tokens."""
    expected = checksums(tokens)
    for kind, leaf in zip(toy.kinds, caches, strict=True):
        if not expected:
            assert leaf.empty()
        elif kind == "state":
            assert mx.all(leaf[0] == expected[-1]).item()
        else:
            wanted = expected if kind == "full" else expected[-min(WINDOW, len(expected)) :]
            assert leaf.offset == len(tokens)
            assert held(kind, leaf)[-len(wanted) :] == wanted


def open_toy(toy: Toy, folder: Path | None = None, **settings: Any) -> PrefixStore:
    given: dict[str, Any] = {"fingerprint": "toy", "model": "toy:latest", "block_size": 16, "hot_bytes": 32 << 20}
    given |= {"folder": folder, "cold_bytes": 64 << 20 if folder else 0, "snapshot_every": 16} | settings
    clock = given.pop("clock", None)
    return PrefixStore(CacheLayout(toy), StoreConfig(**given), **({"clock": clock} if clock else {}))


def play(
    store: PrefixStore, toy: Toy, tokens: Sequence[int], answer: Sequence[int] = (), *, chunk: int = 32,
    media: Sequence[Media] = (),
) -> Match:  # fmt: skip
    """One request: look up (checked), prefill, decode the given answer, finish."""
    match = store.lookup(tokens, media)
    assert match.cached_tokens < max(1, len(tokens))
    assert_holds(toy, match.caches, tokens[: match.cached_tokens])
    capture = store.begin(tokens, media, match=match)
    position = match.cached_tokens
    while position < len(tokens):
        end = min(len(tokens), capture.chunk_end(position, chunk))
        toy(mx.array([list(tokens[position:end])]), match.caches)
        position = end
        capture.after_chunk(match.caches, position)
    for token in answer:
        toy(mx.array([[token]]), match.caches)
    capture.finish(match.caches, [*tokens, *answer])
    store.tick()
    return match
