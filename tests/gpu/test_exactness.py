"""No wrong token: alone = batched = restored from RAM = restored from SSD, in each floating-point type.

Judged by margins (`tests.support.precision`), so the same tests hold on a CPU, with and without TF32, and in 16
bits. On a CPU only float32 is run, and few architectures: `tests/engine` and `tests/cache` compare all of them token
for token there.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from omlx.engine.engine import Engine
from omlx.engine.loader import LoadedModel, load_model
from omlx.messages.load_spec import EngineConfig, LoadSpec
from tests.engine.support import Replies, prompt, run, spec, store_for
from tests.support.precision import Reference, on_gpu
from tests.support.tiny import ARCHITECTURES, tiny_model

DTYPES = ("float32", "bfloat16", "float16") if on_gpu() else ("float32",)
MODELS = tuple(ARCHITECTURES) if on_gpu() else ("qwen3", "gemma3_text", "qwen3_next")
LENGTHS = [1, 70, 5, 150, 33, 70]
NEW = [26, 10, 22, 16, 8, 14]


@cache
def model(architecture: str, dtype: str) -> LoadedModel:
    path = str(tiny_model(architecture))
    loaded = load_model(
        LoadSpec(
            name=architecture, path=path, fingerprint=dtype, engine=EngineConfig(context_length=4096), weights=dtype
        ),
        measure=False,
    )
    loaded.end_tokens = set()
    return loaded


def assert_right(loaded: LoadedModel, dtype: str, prompts: dict[int, list[int]], replies: Replies) -> None:
    for id, tokens in prompts.items():
        answer = replies.tokens[id]
        wrong = Reference(loaded.model, tokens, answer, dtype).wrong(answer)
        assert not wrong, f"request {id}: wrong tokens at {wrong} of {len(answer)}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("architecture", MODELS)
def test_batched_and_restored_replies_hold_no_wrong_token(architecture: str, dtype: str, tmp_path: Path) -> None:
    loaded = model(architecture, dtype)
    config = EngineConfig(context_length=4096, max_concurrent_requests=16)
    store = store_for(loaded, tmp_path)
    machine = Engine(loaded, config, store)
    prompts = {at: prompt(length, at) for at, length in enumerate(LENGTHS)}
    replies = run(machine, [spec(at, tokens, new=NEW[at]) for at, tokens in prompts.items()], every=5)
    assert_right(loaded, dtype, prompts, replies)
    assert machine.max_batch >= 3 or not loaded.can_batch

    # The next turns: from RAM, then with a new store from disk.
    turns = {at: [*tokens, *replies.tokens[at], *prompt(9, at + 40)] for at, tokens in prompts.items()}
    for source in ("ram", "disk"):
        if source == "disk":
            store.close()
            store = store_for(loaded, tmp_path)
            turns = {at: tokens[:-4] + prompt(9, at + 80) for at, tokens in turns.items()}
        machine = Engine(loaded, config, store)
        again = run(machine, [spec(at, tokens, new=8) for at, tokens in turns.items()], every=3)
        assert_right(loaded, dtype, turns, again)
        stats = store.stats()
        if loaded.layout.supported:
            assert (stats.tokens_from_ram if source == "ram" else stats.tokens_from_disk) > 0
    store.close()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("architecture", MODELS)
def test_tokens_of_another_context_are_noticed(architecture: str, dtype: str) -> None:
    """Without this the test above could pass whatever the engine computes."""
    loaded = model(architecture, dtype)
    tokens = prompt(70, 1)
    other = run(Engine(loaded, EngineConfig(context_length=4096)), [spec(0, prompt(70, 2), new=16)]).tokens[0]
    assert len(Reference(loaded.model, tokens, other, dtype).wrong(other)) >= 4
