"""A cache is read only if it behaves as one that can be read; what a layout says of a model is what the model uses."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache, CacheList, ConcatenateKVCache, KVCache, QuantizedKVCache, RotatingKVCache
from omlx_cache import CacheLayout, Kind, PrefixStore, StoreConfig
from omlx_cache.layout import CoverageError

from tests.cache.driver import layout, model
from tests.cache.toy import Toy, open_toy, play


class Odd(KVCache):
    """Has the attributes of a plain cache and keeps keys backwards."""

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        return super().update_and_fetch(keys[:, :, ::-1], values)


class Extra(KVCache):
    """Keeps something besides that nobody knows of."""

    def __init__(self) -> None:
        super().__init__()
        self.summary = None


class Stranger:
    pass


class Uses(Toy):
    """A toy with the given caches."""

    def __init__(self, *makers: Any) -> None:
        super().__init__(["full"] * len(makers))
        self.makers = makers

    def make_cache(self) -> list[Any]:
        return [make() for make in self.makers]


@pytest.mark.parametrize("maker", [Odd, Extra, Stranger, lambda: RotatingKVCache(max_size=8, keep=4)])
def test_an_unknown_cache_means_no_caching_and_a_batch_of_one(maker: Any, caplog: pytest.LogCaptureFixture) -> None:
    network = Uses(KVCache, maker)
    found = CacheLayout(network)
    assert not found.supported and not found.can_batch
    assert len(caplog.records) == 1 and "no prefix caching" in caplog.text
    store = PrefixStore(found, StoreConfig(fingerprint="x", block_size=16, hot_bytes=1 << 20))
    for _ in range(2):
        match = store.lookup(list(range(40)))
        capture = store.begin(list(range(40)), match=match)
        assert match.cached_tokens == 0 and len(match.caches) == 2
        assert capture.chunk_end(0, 30) == 30
        capture.finish(match.caches, list(range(40)))
    assert store.explain([1, 2, 3]).reason == "disabled"
    assert store.stats().hot_records == 0 and not store.stats().supported


def test_caches_without_a_merge_are_read_but_not_batched() -> None:
    found = CacheLayout(Uses(ConcatenateKVCache))
    assert found.supported and not found.can_batch
    quantized = CacheLayout(
        Toy(["full"], 64), make_caches=lambda: [QuantizedKVCache(group_size=64, bits=8)], forward=feed
    )
    assert quantized.supported and not quantized.can_batch


def feed(tokens: mx.array, caches: list[Any]) -> None:
    """Random keys and values for each token, the same for the same token."""
    rows = mx.stack([mx.random.normal((2, 128), key=mx.random.key(token)) for token in tokens[0].tolist()], axis=1)[
        None
    ]
    for cache in caches:
        cache.update_and_fetch(rows, rows + 1)


def test_quantized_caches_are_restored_bit_by_bit() -> None:
    found = CacheLayout(None, make_caches=lambda: [QuantizedKVCache(group_size=64, bits=4)], forward=feed)
    store = PrefixStore(found, StoreConfig(fingerprint="q", block_size=16, hot_bytes=1 << 20))
    tokens = list(range(50))
    match = store.lookup(tokens)
    feed(mx.array([tokens]), match.caches)
    store.begin(tokens, match=match).finish(match.caches, tokens)
    again = store.lookup(tokens)
    assert again.cached_tokens == 49
    feed(mx.array([tokens[49:]]), again.caches)
    for a, b in zip(match.caches[0].keys_and_values(), again.caches[0].keys_and_values(), strict=True):
        assert all(mx.array_equal(x[:, :, :50], y[:, :, :50]).item() for x, y in zip(a, b, strict=True))


def test_caches_within_lists_are_found() -> None:
    class Nested(Toy):
        def make_cache(self) -> list[Any]:
            return [CacheList(ArraysCache(1), KVCache()), CacheList(KVCache())]

        def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
            return super().__call__(tokens, cache=[cache[0][0], cache[0][1], cache[1][0]])

    found = CacheLayout(Nested(["state", "full", "full"]))
    assert found.needs == {Kind.KV, Kind.STATE}
    assert found.bytes_per_token == 2 * 2 * 2 * 4


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text", "qwen3_next", "deepseek_v3", "llama4"])
def test_what_a_layout_says_about_bytes_is_what_a_model_uses(architecture: str) -> None:
    found = layout(architecture)
    caches = found.fresh()
    model(architecture)(mx.array([list(range(40))]), cache=caches)
    kinds = found.needs
    arrays = [array for kind in sorted(kinds - {Kind.STATE}) for array in found.capture(caches, kind, 0, 40)]
    arrays += found.capture_state(caches)[0] if Kind.STATE in kinds else ()
    assert found.expected_bytes(40) == sum(array.nbytes for array in arrays)
    assert found.length(caches) == 40
    # Few arrays per record, whatever the number of layers.
    assert all(len(found.capture(caches, kind, 0, 16)) <= 4 for kind in kinds - {Kind.STATE})


def test_layouts_that_differ_have_different_fingerprints() -> None:
    layouts = [CacheLayout(Toy(kinds, width)) for kinds, width in (
        (["full"], 2), (["full"], 4), (["full", "full"], 2), (["window"], 2), (["full", "state"], 2),
        (["state", "full"], 2),
    )]  # fmt: skip
    assert len({found.fingerprint for found in layouts}) == len(layouts)
    assert CacheLayout(Toy(["full"], 2)).fingerprint == layouts[0].fingerprint


def test_a_block_does_not_keep_the_cache_it_was_cut_from_alive() -> None:
    toy = Toy(["full"], 50_000)
    found = CacheLayout(toy)
    caches = found.fresh()
    toy(mx.array([list(range(200))]), caches)
    (block,) = found.capture(caches, Kind.KV, 0, 16)
    mx.eval(block)
    before = mx.get_active_memory()
    caches.clear()
    assert before - mx.get_active_memory() > 10 * block.nbytes


def test_asking_for_tokens_a_cache_has_forgotten_is_an_error() -> None:
    toy = Toy(["window"])
    found = CacheLayout(toy)
    caches = found.fresh()
    for start in range(0, 100, 10):
        toy(mx.array([list(range(start, start + 10))]), caches)
    with pytest.raises(CoverageError, match="holds tokens"):
        found.capture(caches, Kind.WINDOW, 0, 16)


def test_records_of_another_shape_are_a_miss_and_go() -> None:
    toy = Toy(["full"])
    store = open_toy(toy)
    play(store, toy, list(range(40)))
    for name in list(store.hot.names()):
        record = store.hot.get(name)
        assert record is not None
        store.hot.discard(name)
        store.hot.put(record._replace(arrays=tuple(array[..., :1] for array in record.arrays)), dirty=True, used=0)
    assert play(store, toy, list(range(40))).cached_tokens == 0
    assert store.stats().restore_failures == 1
    assert play(store, toy, list(range(40))).cached_tokens == 39
