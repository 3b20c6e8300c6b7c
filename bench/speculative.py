"""What a draft model gains a lone sequence, at set rates of right guesses.

Random weights agree on nothing, so what both models say is *scripted*: each runs in full, and then the logits of the
token it is to say are raised. The draft says another token where its guess is to be wrong. The time is that of real
models of both shapes; how often a guess is right is a property of real weights and texts, and therefore an input
here.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from typing import Any

import mlx.core as mx
import msgspec
from mlx_lm.models.cache import make_prompt_cache

from bench.shapes import SHAPES, Subject, prompts, random_model
from omlx.engine.engine import Engine
from omlx.engine.loader import LoadedModel
from omlx.engine.sequence import SequenceSpec
from omlx.messages.load_spec import EngineConfig
from omlx.messages.request import Limits, Sampling

DRAFTS = {"qwen3-8b": "qwen3-0.6b", "qwen3-0.6b": "small", "small": "tiny", "tiny": "tiny"}
RATES = (0.9, 0.7, 0.5, 0.0)
_WARM = 24
"""Tokens that are not counted."""


class Scripted:
    """`model`, made to say `script[p]` at place p of the sequence."""

    def __init__(self, model: Any, script: list[int]) -> None:
        self._model = model
        self._script = mx.array(script, dtype=mx.int32)

    def make_cache(self) -> list[Any]:
        return list(make_prompt_cache(self._model))

    def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        logits = self._model(tokens, cache=cache)
        end, count = cache[0].offset, tokens.shape[1]
        said = self._script[end - count + 1 : end + 1][None, :, None]
        return mx.put_along_axis(logits, said, mx.array(1e4, dtype=logits.dtype), axis=-1)


def scripted(model: LoadedModel, script: list[int]) -> LoadedModel:
    return msgspec.structs.replace(model, model=Scripted(model.model, script))


def speculative(shape: str, model: Subject, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Tokens per second of one sequence with and without a draft, in turns."""
    draft = random_model(DRAFTS[shape], vocabulary=SHAPES[shape]["vocab_size"]).ours
    length, count = options.prompt, _WARM + 4 * options.steps
    chance = random.Random(1)
    script = [chance.randrange(100, 500) for _ in range(length + count + 64)]
    target = scripted(model.ours, script)
    rows = []
    for rate in options.rates or RATES:
        wrong = [token if chance.random() < rate else token + 1 for token in script]
        guesser = scripted(draft, wrong)
        found: dict[str, list[float]] = {"plain": [], "draft": []}
        share = 0.0
        for at in range(options.rounds + 1):
            for name in found:
                made, share = _rate(target, guesser if name == "draft" else None, script, length, count)
                found[name] += [made] if at else []  # the first round compiles
        medians = {name: statistics.median(values) for name, values in found.items()}
        rows.append(
            {
                "what": f"{shape} with a {DRAFTS[shape]} draft, {rate:.0%} of guesses right",
                **medians,
                "ratio": medians["draft"] / medians["plain"],
                "accepted %": share * 100,
            }
        )
    del draft
    return rows


def _rate(
    target: LoadedModel, draft: LoadedModel | None, script: list[int], length: int, count: int
) -> tuple[float, float]:
    """Tokens per second, and the share of the draft's guesses that were right."""
    engine = Engine(target, EngineConfig(context_length=40960), draft=draft)
    limits = Limits(num_predict=count)
    tokens = prompts(1, length, uneven=False)[0]
    engine.add(SequenceSpec(id=0, tokens=tokens, sampling=Sampling(temperature=0), limits=limits))
    reply: list[int] = []
    begun = counted_from = 0.0
    while engine.has_work:
        for output in engine.step():
            reply += output.tokens
        if not begun and len(reply) >= _WARM:
            begun, counted_from = time.perf_counter(), len(reply)
    seconds = time.perf_counter() - begun
    if reply != script[length : length + count]:
        raise RuntimeError("the reply is not the script's")
    guessed, accepted = engine.guesses or (0, 0)
    del engine
    gc.collect()
    mx.clear_cache()
    return (count - counted_from) / seconds, accepted / max(guessed, 1)
