"""How fast the engine is, side by side with its peers in one run: mlx-lm's bare loop and its BatchGenerator.

python bench/engine.py the shapes that suit this device, as a table; --json FILE for the figures python
bench/engine.py --quick a small model and few steps, to see that everything runs python bench/engine.py --only
throughput --shapes qwen3-8b

A model of the right shape with random weights is as fast as a trained one. Each figure is the median of several
rounds in which the candidates take turns, so that a machine that slows down slows all of them. Rates are tokens per
second.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omlx.engine import blas

BLAS = blas.prepare()

import mlx.core as mx
from mlx_lm.generate import BatchGenerator, generate_step

from bench.shapes import SHAPES, Subject, prompts, random_model
from bench.speculative import speculative
from omlx.engine.engine import Engine
from omlx.engine.loader import LoadedModel, device
from omlx.engine.sampling import Sampler
from omlx.engine.sequence import SequenceSpec
from omlx.messages.load_spec import EngineConfig
from omlx.messages.request import Limits, Sampling

GREEDY = Sampling(temperature=0)
DEFAULTS = Sampling(seed=1)
"""What an Ollama user gets: temperature 0.8, top_k 40, top_p 0.9."""
Row = dict[str, Any]


# ---------------------------------------------------------------- models
class NoModel:
    """A model that costs nothing, so that a step is the engine's own work alone."""

    def __init__(self, vocabulary: int) -> None:
        self.layers: list[Any] = []
        self._logits = mx.random.normal((64, 1, vocabulary))
        mx.eval(self._logits)

    def make_cache(self) -> list[Any]:
        return []

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        return self._logits[: tokens.shape[0]]


# ---------------------------------------------------------------- the candidates
Step = Callable[[], int]
"""Runs one decode step and returns how many tokens it made."""


@contextmanager
def our_engine(model: Subject, asked: list[list[int]], steps: int, sampling: Sampling = GREEDY) -> Iterator[Step]:
    engine = Engine(model.ours, EngineConfig(context_length=40960, max_concurrent_requests=len(asked)))
    for at, tokens in enumerate(asked):
        engine.add(SequenceSpec(id=at, tokens=tokens, sampling=sampling, limits=Limits(num_predict=steps + 600)))
    started: set[int] = set()
    while len(started) < len(asked):
        started |= {output.id for output in engine.step() if output.tokens}
    yield lambda: sum(len(output.tokens) for output in engine.step())


@contextmanager
def batch_generator(model: Subject, asked: list[list[int]], steps: int) -> Iterator[Step]:
    generator = BatchGenerator(model.plain, max_tokens=steps + 600, completion_batch_size=len(asked))
    generator.insert(asked)
    started: set[int] = set()
    while len(started) < len(asked):
        started |= {response.uid for response in generator.next()[1]}
    yield lambda: len(generator.next()[1])
    generator.close()


@contextmanager
def bare_loop(model: Subject, asked: list[list[int]], steps: int) -> Iterator[Step]:
    tokens = generate_step(mx.array(asked[0]), model.plain, max_tokens=steps + 64)
    next(tokens)

    def step() -> int:
        next(tokens)
        return 1

    yield step


CANDIDATES: dict[str, Any] = {"bare": bare_loop, "BatchGenerator": batch_generator, "omlx": our_engine}


def rate(candidate: Any, *arguments: Any, steps: int) -> float:
    """Tokens per second over `steps` steps, after a few that are not counted."""
    with candidate(*arguments, steps) as step:
        for _ in range(8):
            step()
        begun, made = time.perf_counter(), 0
        for _ in range(steps):
            made += step()
        seconds = time.perf_counter() - begun
    gc.collect()
    mx.clear_cache()
    return made / seconds


# ---------------------------------------------------------------- what is measured
def throughput(shape: str, model: Subject, options: argparse.Namespace) -> list[Row]:
    """Decode rates at several batch sizes, with prompts of one length and of several."""
    rows = []
    for batch in options.batches:
        for uneven in [False] if batch == 1 else [False, True]:
            asked = prompts(batch, options.prompt, uneven=uneven)
            names = [name for name in CANDIDATES if batch == 1 or name != "bare"]
            found: dict[str, list[float]] = {name: [] for name in names}
            for at in range(options.rounds + 1):
                for name in names:
                    made = rate(CANDIDATES[name], model, asked, steps=options.steps if at else 4)
                    found[name] += [made] if at else []  # the first round compiles
            medians = {name: statistics.median(values) for name, values in found.items()}
            yardstick = medians.get("bare") or medians["BatchGenerator"]
            kind = "uneven" if uneven else "even"
            rows.append(
                {
                    "what": f"{shape} decode, batch {batch}, {kind} prompts",
                    **medians,
                    "ratio": medians["omlx"] / yardstick,
                }
            )
    return rows


def sampled(shape: str, model: Subject, options: argparse.Namespace) -> list[Row]:
    """What the usual sampling settings cost a step, against greedy."""
    asked = prompts(16, options.prompt, uneven=True)
    found: dict[str, list[float]] = {"greedy": [], "sampled": []}
    for _ in range(options.rounds):
        for name, sampling in (("greedy", GREEDY), ("sampled", DEFAULTS)):
            made = rate(lambda m, a, n, s=sampling: our_engine(m, a, n, s), model, asked, steps=options.steps)
            found[name].append(made)
    medians = {name: statistics.median(values) for name, values in found.items()}
    return [
        {"what": f"{shape} decode, batch 16, sampled", **medians, "ratio": medians["sampled"] / medians["greedy"]},
    ]


def sampler_cost(options: argparse.Namespace) -> list[Row]:
    """The sampler alone, 16 rows of a vocabulary of 151,936, in microseconds."""
    logits = mx.random.normal((16, 151936)).astype(mx.bfloat16 if device() != "cpu" else mx.float32) * 3
    mx.eval(logits)
    kinds = {
        "greedy": GREEDY,
        "defaults": DEFAULTS,
        "top_k 0, top_p 0.9": Sampling(seed=1, top_k=0),
        "defaults + repeat_penalty": Sampling(seed=1, repeat_penalty=1.1),
    }
    rows = []
    for name, sampling in kinds.items():
        requests = [_Row(sampling) for _ in range(16)]
        sampler = Sampler(requests, [0] * 16, 151936)
        inputs = mx.zeros((16,), dtype=mx.int32)
        times = []
        for _ in range(4 if options.quick else 40):
            begun = time.perf_counter()
            mx.eval(*sampler(logits, inputs).arrays())
            times.append(time.perf_counter() - begun)
        rows.append({"what": f"sampler, 16 x 151,936, {name}", "µs": statistics.median(times) * 1e6})
    return rows


class _Row:
    """A sequence as the sampler sees it."""

    seed, context, mirostat_mu, wants_logprobs = 1, 4096, None, None

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self.tokens = list(range(100))


def host_cost(options: argparse.Namespace) -> list[Row]:
    """The engine's own work per step, with a model that costs nothing."""
    rows = []
    for vocabulary in (64, 4096):
        base = random_model("tiny").ours
        model = LoadedModel(**{name: getattr(base, name) for name in base.__struct_fields__})
        model.model, model.vocabulary = NoModel(vocabulary), vocabulary
        for batch in (1, 16):
            with our_engine(Subject(model, None), prompts(batch, 8, uneven=False), 4000) as step:
                times = []
                for _ in range(400 if options.quick else 3000):
                    begun = time.perf_counter()
                    step()
                    times.append(time.perf_counter() - begun)
            rows.append(
                {"what": f"host cost of a step, batch {batch}, V={vocabulary}", "µs": statistics.median(times) * 1e6}
            )
    return rows


def disturbed(shape: str, model: Subject, options: argparse.Namespace) -> list[Row]:
    """Decode of 4 running sequences while a long prompt is read: its rate and its longest gap."""
    long = 2000 if options.quick or device() == "cpu" else 32000
    engine = Engine(model.ours, EngineConfig(context_length=40960, max_concurrent_requests=8))
    for at, tokens in enumerate(prompts(4, options.prompt, uneven=True)):
        engine.add(SequenceSpec(id=at, tokens=tokens, sampling=GREEDY, limits=Limits(num_predict=20000)))
    for _ in range(40):
        engine.step()
    begun, count = time.perf_counter(), 0
    for _ in range(options.steps):
        count += sum(len(output.tokens) for output in engine.step())
    quiet = count / (time.perf_counter() - begun)
    engine.add(
        SequenceSpec(id=9, tokens=prompts(1, long, uneven=False)[0], sampling=GREEDY, limits=Limits(num_predict=1))
    )
    begun = last = time.perf_counter()
    count, gaps, done = 0, [], False
    while not done:
        outputs = engine.step()
        now = time.perf_counter()
        gaps.append(now - last)
        last = now
        count += sum(len(output.tokens) for output in outputs if output.id != 9)
        done = any(output.id == 9 and output.finish is not None for output in outputs)
    seconds = time.perf_counter() - begun
    return [
        {
            "what": f"{shape} decode of 4 while {long:,} tokens are read",
            "undisturbed": quiet,
            "meanwhile": count / seconds,
            "ratio": count / seconds / quiet,
            "longest gap ms": max(gaps) * 1e3,
            "median gap ms": statistics.median(gaps) * 1e3,
            "prompt tok/s": long / seconds,
        }
    ]


def first_tokens(shape: str, model: Subject, options: argparse.Namespace) -> list[Row]:
    """Time to first token of 8 prompts of 1,500 tokens that come at once, against reading them one after the other."""
    length = 300 if options.quick else 1500
    asked = prompts(8, length, uneven=False)

    def seconds_to_all(groups: list[list[list[int]]]) -> tuple[float, list[float]]:
        total, times = 0.0, []
        for group in groups:
            engine = Engine(model.ours, EngineConfig(context_length=40960, max_concurrent_requests=8))
            begun = time.perf_counter()
            for at, tokens in enumerate(group):
                engine.add(SequenceSpec(id=at, tokens=tokens, sampling=GREEDY, limits=Limits(num_predict=64)))
            seen: set[int] = set()
            while len(seen) < len(group):
                for output in engine.step():
                    if output.tokens and output.id not in seen:
                        seen.add(output.id)
                        times.append(time.perf_counter() - begun)
            total += time.perf_counter() - begun
        return total, times

    seconds_to_all([asked])
    alone, _ = seconds_to_all([[tokens] for tokens in asked])
    _, together = seconds_to_all([asked])
    return [
        {
            "what": f"{shape} first token of 8 prompts of {length}",
            "sum alone ms": alone * 1e3,
            "median ms": statistics.median(together) * 1e3,
            "last ms": max(together) * 1e3,
            "ratio": max(together) / alone,
        }
    ]


PER_MODEL = {
    "throughput": throughput,
    "sampled": sampled,
    "disturbed": disturbed,
    "first": first_tokens,
    "speculative": speculative,
}
ALONE = {"host": host_cost, "sampler": sampler_cost}


def show(row: Row) -> None:
    figures = "  ".join(
        f"{name} {value:.2f}" if name == "ratio" else f"{name} {value:,.0f}" if value >= 100 else f"{name} {value:,.1f}"
        for name, value in row.items()
        if name != "what"
    )
    print(f"{row['what']:<52} {figures}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small model, few steps")
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES))
    parser.add_argument("--only", nargs="+", choices=[*ALONE, *PER_MODEL], default=[*ALONE, *PER_MODEL])
    parser.add_argument("--batches", nargs="+", type=int)
    parser.add_argument("--prompt", type=int, default=128, help="tokens in a prompt")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rates", nargs="+", type=float, help="shares of a draft's guesses that are right")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    cpu = device() == "cpu"
    options.steps = options.steps or (20 if options.quick else 48 if cpu else 128)
    options.rounds = 1 if options.quick else options.rounds
    options.batches = options.batches or ([1, 4] if options.quick else [1, 4, 16] if cpu else [1, 4, 16, 64])
    shapes = options.shapes or (["tiny"] if options.quick else ["small"] if cpu else ["qwen3-0.6b", "qwen3-8b"])
    print(f"device {device()}, BLAS {BLAS}, mlx {mx.__version__}, {options.steps} steps, {options.rounds} round(s)")
    rows: list[Row] = []

    def note(found: list[Row]) -> None:
        for row in found:
            show(row)
        rows.extend(found)
        if options.json:
            options.json.write_text(json.dumps({"device": device(), "mlx": mx.__version__, "rows": rows}, indent=1))

    for name, alone in ALONE.items():
        if name in options.only:
            note(alone(options))
    for shape in shapes:
        model = random_model(shape)
        for name, measure in PER_MODEL.items():
            if name in options.only:
                note(measure(shape, model, options))
        del model
        gc.collect()
        mx.clear_cache()


if __name__ == "__main__":
    main()
