"""A restored prefix and the rest computed give what computing everything gives, for every kind of cache there is."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from omlx_cache import Kind, PrefixStore
from omlx_cache.records import Record

from tests.cache.driver import BLOCK, compute, layout, open_store, proceed, prompt, serve
from tests.support.precision import noise

ARCHITECTURES = (
    "llama", "qwen3", "qwen3_moe", "gemma3_text", "gemma3n", "gpt_oss", "qwen3_next", "mamba", "mamba2", "falcon_h1",
    "lfm2", "deepseek_v3", "nemotron_h", "jamba", "llama4",
)  # fmt: skip
NOISE = noise()
"""What cutting a prefill into other chunks does to logits in float32 on its own."""
LENGTH = 101


@pytest.fixture
def stored(architecture: str) -> PrefixStore:
    """A store that has seen one prompt of `LENGTH` tokens, prefilled in chunks of three blocks."""
    store = open_store(architecture)
    serve(store, architecture, prompt(LENGTH))
    return store


def assert_same(architecture: str, store: PrefixStore, tokens: list[int]) -> int:
    """The prompt answered from the store equals the prompt answered without; returns how much was restored."""
    match = store.lookup(tokens)
    logits, answer = proceed(architecture, match.caches, tokens[match.cached_tokens :])
    expected = compute(architecture, tokens, answer)
    assert mx.argmax(expected, axis=-1).tolist() == answer
    assert float(mx.abs(logits - expected).max()) < NOISE
    return match.cached_tokens


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_restoring_at_every_boundary_is_exact(architecture: str, stored: PrefixStore) -> None:
    # A prompt that parts from the stored one right behind a block is restored at that block's end.
    restored = []
    for boundary in range(BLOCK, LENGTH, BLOCK):
        tokens = prompt(LENGTH)[:boundary] + prompt(20, seed=boundary)
        restored.append(assert_same(architecture, stored, tokens))
    if Kind.STATE in layout(architecture).needs:
        # Recurrent state exists only at snapshots: here on every block.
        assert restored == list(range(BLOCK, LENGTH, BLOCK))
    else:
        assert all(found >= boundary for found, boundary in zip(restored, range(BLOCK, LENGTH, BLOCK), strict=True))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_exact_repeat_costs_one_token(architecture: str, stored: PrefixStore) -> None:
    assert assert_same(architecture, stored, prompt(LENGTH)) == LENGTH - 1


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_next_turn_computes_only_what_is_new(architecture: str) -> None:
    store = open_store(architecture)
    _, answer = serve(store, architecture, prompt(70), 9)
    following = prompt(70) + answer + prompt(13, seed=5)
    assert assert_same(architecture, store, following) == 70 + len(answer)
    match, second = serve(store, architecture, following, 9)
    assert match.cached_tokens == 70 + len(answer)
    third = [*following, *second, *prompt(5, seed=6)]
    assert assert_same(architecture, store, third) == len(following) + len(second)


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text", "gemma3n", "gpt_oss", "llama4", "deepseek_v3"])
def test_a_prompt_that_parts_within_a_block_is_restored_up_to_there(architecture: str, stored: PrefixStore) -> None:
    for parting in (1, BLOCK + 1, 70, 100):
        tokens = prompt(LENGTH)[:parting] + prompt(9, seed=parting)
        assert assert_same(architecture, stored, tokens) == parting


@pytest.mark.parametrize("architecture", ["gemma3_text", "qwen3_next", "falcon_h1"])
def test_the_ring_of_a_window_that_has_wrapped_is_read_in_order(architecture: str) -> None:
    store = open_store(architecture)
    _, answer = serve(store, architecture, prompt(40), 90)
    whole = prompt(40) + answer
    assert assert_same(architecture, store, [*whole, *prompt(3, seed=8)]) == len(whole)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_records_that_went_through_the_disk_are_exact(architecture: str, tmp_path: Any) -> None:
    store = open_store(architecture, tmp_path)
    serve(store, architecture, prompt(LENGTH))
    store.close()
    reopened = open_store(architecture, tmp_path)
    assert assert_same(architecture, reopened, prompt(LENGTH)) == LENGTH - 1
    assert reopened.stats().tokens_from_disk == LENGTH - 1
    assert assert_same(architecture, reopened, prompt(LENGTH)) == LENGTH - 1
    assert reopened.stats().tokens_from_ram == LENGTH - 1
    reopened.close()


@pytest.mark.parametrize("architecture", ["baichuan_m1", "recurrent_gemma"])
@pytest.mark.parametrize("answered", [3, 40])
def test_an_edited_answer_keeps_the_prompt_where_windows_meet_states(architecture: str, answered: int) -> None:
    """Longer pieces of the block have forgotten what the window needs at the prompt's end: the shorter one counts."""
    for seed in range(4):
        store = open_store(architecture, snapshot_every=1024)
        question = prompt(70, seed)
        _, answer = serve(store, architecture, question, answered, boundaries=[66])
        for edit in range(3):
            edited = [*question[:66], *prompt(12, seed=100 * seed + edit)]
            assert assert_same(architecture, store, edited) == 66
            assert assert_same(architecture, store, [*question, *answer, *prompt(3, seed=edit)]) == 70 + answered


@pytest.mark.parametrize(
    "architecture", ["qwen3_next", "mamba2", "falcon_h1", "lfm2", "baichuan_m1", "recurrent_gemma"]
)
def test_a_branch_in_the_middle_computes_at_most_15_percent_again(architecture: str) -> None:
    store = open_store(architecture, snapshot_every=2048)
    question = prompt(500)
    serve(store, architecture, question, 2, chunk=512)
    for parting in (470, 350, 250, 130):
        restored = assert_same(architecture, store, [*question[:parting], *prompt(9, seed=parting)])
        assert 0.85 * parting <= restored <= parting


# -------------------------------------------------------------------- negative controls: these must be noticed
def corrupt(store: PrefixStore, kind: Kind, change: Any) -> None:
    """Replace the records of one kind by changed ones, in place."""
    for name in list(store.hot.names()):
        record = store.hot.get(name)
        assert record is not None
        if name.kind == kind:
            store.hot.discard(name)
            store.hot.put(
                record._replace(arrays=tuple(change(array, record) for array in record.arrays)), dirty=True, used=0
            )


def differs(architecture: str, store: PrefixStore) -> bool:
    tokens = prompt(LENGTH)
    match = store.lookup(tokens)
    assert match.cached_tokens == LENGTH - 1
    logits, answer = proceed(architecture, match.caches, tokens[match.cached_tokens :], 1)
    return float(mx.abs(logits - compute(architecture, tokens, answer)).max()) > 10 * NOISE


@pytest.mark.parametrize(
    "architecture", ["llama", "qwen3", "gemma3_text", "gemma3n", "gpt_oss", "lfm2", "deepseek_v3", "llama4"]
)
def test_blocks_in_the_wrong_order_would_be_noticed(architecture: str, stored: PrefixStore) -> None:
    kind = Kind.WINDOW if Kind.WINDOW in layout(architecture).needs else Kind.KV
    first = next(stored.hot.get(name) for name in stored.hot.names() if name.kind == kind)
    assert first is not None
    corrupt(stored, kind, lambda array, record: first.arrays[_place(array, record)][:, :, : array.shape[2]])
    assert differs(architecture, stored)


def _place(array: mx.array, record: Record) -> int:
    return next(index for index, other in enumerate(record.arrays) if other is array)


@pytest.mark.parametrize("architecture", ["qwen3_next", "mamba", "mamba2", "falcon_h1", "lfm2", "nemotron_h", "jamba"])
def test_a_dropped_state_would_be_noticed(architecture: str, stored: PrefixStore) -> None:
    corrupt(stored, Kind.STATE, lambda array, _: mx.zeros_like(array))
    assert differs(architecture, stored)


@pytest.mark.parametrize("architecture", ["gemma3_text", "gemma3n", "gpt_oss"])
def test_a_window_shifted_by_one_token_would_be_noticed(architecture: str, stored: PrefixStore) -> None:
    def shift(array: mx.array, record: Record) -> mx.array:
        return mx.roll(array, 1, axis=2)

    corrupt(stored, Kind.WINDOW, shift)
    assert differs(architecture, stored)
