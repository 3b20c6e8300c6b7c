"""Running the real engine on tiny models."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

from omlx.engine import blas

# Tiny matrices gain nothing from threads, and lose much where several test processes share the cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
blas.prepare()

import mlx.core as mx
import msgspec
from mlx_lm.generate import generate_step
from omlx_cache.store import PrefixStore, StoreConfig

from omlx.engine.engine import Engine
from omlx.engine.loader import LoadedModel, load_model
from omlx.engine.sequence import Output, SequenceSpec
from omlx.messages.load_spec import EngineConfig, LoadSpec
from omlx.messages.request import Limits, Sampling
from tests.support.precision import Greedy, noise, tf32
from tests.support.tiny import tiny_model

GREEDY = Sampling(temperature=0)


@cache
def loaded(architecture: str, *, taught: bool = False, endless: bool = False) -> LoadedModel:
    """A tiny model; `endless`: no token ends a reply."""
    path = str(tiny_model(architecture, taught=taught))
    model = load_model(
        LoadSpec(name=architecture, path=path, fingerprint="test", engine=EngineConfig(context_length=4096)),
        measure=False,
    )
    return msgspec.structs.replace(model, end_tokens=set()) if endless else model


def engine(architecture: str = "llama", *, taught: bool = False, endless: bool = False, **config: Any) -> Engine:
    values: dict[str, Any] = {"context_length": 4096, "max_concurrent_requests": 16} | config
    return Engine(loaded(architecture, taught=taught, endless=endless), EngineConfig(**values))


def store_for(model: LoadedModel, folder: Path | None = None) -> PrefixStore:
    config: dict[str, Any] = {"fingerprint": "test", "hot_bytes": 1 << 28, "block_size": 16}
    config |= {"folder": folder, "cold_bytes": 1 << 28 if folder else 0}
    return PrefixStore(model.layout, StoreConfig(**config))


def prompt(length: int, seed: int = 0) -> list[int]:
    """Token ids that look like nothing in particular."""
    return [(seed * 7919 + at * at * 31 + at * 17) % 600 + 11 for at in range(length)]


def spec(id: int, tokens: list[int], *, new: int = 24, sampling: Sampling = GREEDY, **other: Any) -> SequenceSpec:
    limits = other.pop("limits", Limits(num_predict=new))
    return SequenceSpec(id=id, tokens=tokens, sampling=sampling, limits=limits, **other)


class Replies:
    """Everything an engine said, by request."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.text: dict[int, str] = {}
        self.ends: dict[int, Output] = {}
        self.outputs: list[Output] = []

    def take(self, outputs: Iterable[Output]) -> None:
        for output in outputs:
            self.outputs.append(output)
            self.tokens.setdefault(output.id, []).extend(output.tokens)
            self.text[output.id] = self.text.get(output.id, "") + output.text
            if output.finish is not None or output.failure is not None:
                assert output.id not in self.ends, "a request ends once"
                self.ends[output.id] = output


def run(
    machine: Engine,
    specs: list[SequenceSpec],
    *,
    every: int = 0,
    after_step: Callable[[int, Replies], None] = lambda step, replies: None,
) -> Replies:
    """Run to the end; with `every`, a new request joins each so many steps."""
    replies, waiting, step = Replies(), list(specs), 0
    while waiting or machine.has_work:
        while waiting and (not every or step % every == 0):
            machine.add(waiting.pop(0))
            if every:
                break
        replies.take(machine.step())
        step += 1
        after_step(step, replies)
        assert step < 20_000, "the engine does not come to an end"
    return replies


def bare(architecture: str, tokens: list[int], new: int) -> list[int]:
    """The yardstick: mlx-lm's own loop over one sequence, greedy. In TF32 its tokens are compared by their margins."""
    steps = generate_step(mx.array(tokens), loaded(architecture).model, max_tokens=new)
    if not tf32():
        return [int(token) for token, _ in steps]
    answer, margins, scale = [], [], 0.0
    for token, logprobs in steps:
        best = mx.topk(logprobs, 2).tolist()
        answer.append(int(token))
        margins.append(abs(best[0] - best[1]))
        scale = max(scale, float(mx.max(logprobs) - mx.min(logprobs)))
    return Greedy(answer, margins, 2 * noise(scale=scale))
