"""Rows in a batch keep their keys and values whoever joins and leaves, and the batch is not copied for each of them."""

from __future__ import annotations

import random

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache
from omlx_cache.padded import PaddedKVCache

from omlx.engine import caches

WIDTH = 2


def row(tokens: list[int]) -> caches.Caches:
    """One layer that holds these tokens: a key is its token, a value the negative of it."""
    cache = KVCache()
    keys = mx.broadcast_to(mx.array(tokens, dtype=mx.float32)[None, None, :, None], (1, 1, len(tokens), WIDTH))
    cache.update_and_fetch(keys, -keys)
    return [cache]


def held(batch: caches.Caches, lengths: list[int], at: int) -> list[int]:
    (cache,) = caches.row(batch, lengths, at)
    keys, values = cache.keys[0, 0, : lengths[at], 0], cache.values[0, 0, : lengths[at], 0]
    assert mx.array_equal(keys, -values)
    return [int(token) for token in keys.tolist()]


def grow(batch: caches.Caches, rows: list[list[int]], token: int) -> None:
    """A decode step: every row takes in a token of its own."""
    tokens = [token + at for at in range(len(rows))]
    keys = mx.broadcast_to(mx.array(tokens, dtype=mx.float32)[:, None, None, None], (len(rows), 1, 1, WIDTH))
    batch[0].update_and_fetch(keys, -keys)
    caches.advance(batch, 1)
    for tokens_of, one in zip(rows, tokens, strict=True):
        tokens_of.append(one)


@pytest.mark.parametrize("seed", range(12))
def test_rows_keep_their_own_through_joins_and_leaves(seed: int) -> None:
    chance = random.Random(seed)
    fresh = iter(range(1, 10**6, 1000))
    rows: list[list[int]] = []
    batch: caches.Caches = []
    for _ in range(60):
        if len(rows) < 2 or chance.random() < 0.4:
            count = chance.choice([1, 1, 1, 3])
            lengths = [chance.choice([5, 40, 41, 300])] * count if chance.random() < 0.5 else None
            lengths = lengths or [chance.randrange(1, 90) for _ in range(count)]
            firsts = [next(fresh) for _ in lengths]
            new = [list(range(first, first + size)) for first, size in zip(firsts, lengths, strict=True)]
            parts = [(batch, [len(tokens) for tokens in rows])] if rows else []
            together = caches.join([(row(tokens), [len(tokens)]) for tokens in new])
            batch = caches.join([*parts, (together, [len(tokens) for tokens in new])])
            rows += new
        elif chance.random() < 0.5:
            gone = set(chance.sample(range(len(rows)), chance.randrange(1, len(rows))))
            keep = caches.compacted(len(rows), gone)
            assert sorted([*keep, *gone]) == list(range(len(rows)))
            batch = caches.leave(batch, [len(tokens) for tokens in rows], keep)
            rows = [rows[at] for at in keep]
        else:
            grow(batch, rows, next(fresh))
        now = [len(tokens) for tokens in rows]
        assert [held(batch, now, at) for at in range(len(rows))] == rows


def test_prompts_of_one_forward_join_as_they_are() -> None:
    """Rows of unequal length that were padded behind their tokens, from the start and behind what they held."""
    tokens = [[1, 2, 3], [11, 12, 13, 14, 15], [21]]
    cache = KVCache()
    padded = [each + [99] * (5 - len(each)) for each in tokens]
    keys = mx.broadcast_to(mx.array(padded, dtype=mx.float32)[:, None, :, None], (3, 1, 5, WIDTH))
    cache.update_and_fetch(keys, -keys)
    counts = [len(each) for each in tokens]
    batch = caches.together([cache], [0, 0, 0], counts)
    assert [held(batch, counts, at) for at in range(3)] == tokens
    more = [[31], [41, 42], [51, 52, 53]]
    padded = [each + [99] * (3 - len(each)) for each in more]
    keys = mx.broadcast_to(mx.array(padded, dtype=mx.float32)[:, None, :, None], (3, 1, 3, WIDTH))
    batch[0].update_and_fetch(keys, -keys)
    caches.advance(batch, 3)
    batch = caches.together(batch, counts, [len(each) for each in more])
    whole = [first + second for first, second in zip(tokens, more, strict=True)]
    assert [held(batch, [len(each) for each in whole], at) for at in range(3)] == whole


def test_a_running_batch_is_copied_for_few_of_many_newcomers() -> None:
    rows = [list(range(at * 1000, at * 1000 + 300)) for at in range(64)]
    batch = caches.join([(row(tokens), [300]) for tokens in rows])
    sizes = set()
    for _ in range(64):
        rows.append(list(range(200)))
        before = [len(tokens) for tokens in rows[:-1]]
        batch = caches.join([(batch, before), (row(rows[-1]), [200])])
        assert isinstance(batch[0], PaddedKVCache)
        sizes.add(batch[0].keys.shape[0])
    assert len(sizes) <= 4
    assert max(sizes) <= 128 * 1.5
