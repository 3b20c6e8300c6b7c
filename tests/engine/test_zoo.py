"""Every model type of mlx-lm that can be built on the spot: alone, in batches, restored and restarted, the same reply.

The families of the catalog run in the everyday suite, the rest with `make test-slow`. What a model's code cannot do is
found by the load checks, as they would at its first load; `OFF` says for which models that is so.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.utils import MODEL_REMAPPING
from omlx_cache.adapters.table import layer_caches
from omlx_cache.layout import CacheLayout

from omlx.engine import caches, load_checks
from omlx.engine.engine import Engine
from omlx.engine.fuse import fuse
from omlx.engine.loader import LoadedModel
from omlx.engine.model_adapters import adapt
from omlx.messages.load_spec import EngineConfig
from tests.engine.support import loaded, prompt, run, spec, store_for
from tests.support.zoo import ALIASES, CONFIGS, NOT_HERE, build

EVERYDAY = {
    "afm7", "deepseek_v3", "gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma4", "gemma4_text", "glm4", "gpt_bigcode",
    "gpt_oss", "granite", "granitemoehybrid", "llama", "mistral3", "olmo2", "phi3", "qwen2", "qwen2_vl", "qwen3",
    "qwen3_5", "qwen3_moe", "qwen3_next", "qwen3_vl",
}  # fmt: skip
"""The catalog's families, and those that need an adapter."""
# Their caches cannot be joined, and those of deepseek_v41 cannot be stored.
OFF = {
    "deepseek_v41": ("batching", "cache"),
    "llama4": ("batching",),
}
NEW = 8
LENGTHS = [37, 5, 20, 11]


def network_of(model_type: str) -> Any:
    """As the loader holds it."""
    network = build(model_type)
    fuse(network)
    adapt(network)
    return network


def answer_alone(network: Any, tokens: list[int]) -> list[int]:
    """The yardstick: mlx-lm's own loop over one sequence, greedy."""
    return [int(token) for token, _ in generate_step(mx.array(tokens), network, max_tokens=NEW)]


def rows_of(network: Any) -> list[int]:
    """Numbers of rows to batch: two, and as many as there are key/value heads."""
    cache = caches.new(network)
    mx.eval(network(mx.array([[1]]), cache=cache))
    keys = [leaf.keys for leaf in layer_caches(cache) if isinstance(getattr(leaf, "keys", None), mx.array)]
    return sorted({2, *(array.shape[1] for array in keys if 2 < array.shape[1] <= len(LENGTHS))})


@pytest.mark.parametrize(
    "model_type",
    [pytest.param(name, marks=() if name in EVERYDAY else pytest.mark.slow) for name in CONFIGS],
)
def test_a_reply_is_the_same_however_it_is_computed(model_type: str, tmp_path: Path) -> None:
    network = network_of(model_type)
    layout = CacheLayout(network)
    width = int(network(mx.array([[1]]), cache=caches.new(network)).shape[-1])
    checks = load_checks.run(load_checks.CheckedModel(network, layout, width), "these versions")
    assert checks.off == OFF.get(model_type, ()), checks.notes
    model: LoadedModel = msgspec.structs.replace(
        loaded("llama", endless=True), model=network, layout=layout, vocabulary=width, can_batch=checks.passed("batch")
    )
    # The adapter of plamo3 changes how long its windows are, which mlx-lm has in two ways.
    yardstick = network if model_type == "plamo3" else build(model_type)
    alone = [answer_alone(yardstick, prompt(length, at)) for at, length in enumerate(LENGTHS)]

    for count in rows_of(network):
        machine = Engine(model, EngineConfig(context_length=4096, max_concurrent_requests=16))
        replies = run(machine, [spec(at, prompt(LENGTHS[at], at), new=NEW) for at in range(count)])
        assert [replies.tokens[at] for at in range(count)] == alone[:count], f"{count} rows"
        assert machine.max_batch == (count if checks.passed("batch") else 1)

    for restart in (False, True):
        store = store_for(model, tmp_path) if checks.passed("restore") else None
        machine = Engine(model, EngineConfig(context_length=4096), store)
        for again in (False, True):
            replies = run(machine, [spec(0, prompt(LENGTHS[0], 0), new=NEW)])
            assert replies.tokens[0] == alone[0], f"restart {restart}, again {again}"
            usage = replies.ends[0].usage
            assert usage is not None
            restored = store is not None and (restart or again)
            assert usage.cached_tokens == (LENGTHS[0] - 1 if restored else 0)
            assert usage.disk_tokens == (LENGTHS[0] - 1 if store is not None and restart and not again else 0)
        if store is not None:
            store.close()


def test_the_zoo_is_complete() -> None:
    """A model type that a new mlx-lm brings belongs into the table."""
    folder = Path(str(import_module("mlx_lm.models").__path__[0]))
    defining = {path.stem for path in folder.glob("*.py") if "class ModelArgs" in path.read_text("utf-8")}
    assert defining - set(CONFIGS) == NOT_HERE
    assert ALIASES == MODEL_REMAPPING
    assert len(CONFIGS) + len(ALIASES) >= 120 <= len(CONFIGS)
