"""What the KV store is worth and what it costs, side by side with computing: `python bench/cache.py`.

    python bench/cache.py                      what suits this device, as a table; --json FILE for the figures
    python bench/cache.py --quick              small everything, to see that it runs
    python bench/cache.py --shape qwen3-8b --prompt 8192 --blocks 100000 --folder /mnt/ssd/kv

Four parts. *Prefix*: time to first token of a prompt computed, restored from RAM and restored from disk (a store
opened anew, the system asked to forget the files it has read), next to one decode step and to reading the same files
plainly. *Sharing*: sixteen prompts that begin alike and arrive together at an engine, against one, and against as
many without a store. *Cost*: what storing adds to a prefill and to the steps of a running decode. *Index*: opening a
folder of many blocks, and deciding from where a prompt of 32k tokens is restored. Medians of several rounds. A model
of the right shape with random weights is as fast as a trained one. `bench/cache_product.py` measures through HTTP.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from omlx.engine import blas

BLAS = blas.prepare()

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache
from omlx_cache import CacheLayout, PrefixStore, StoreConfig
from omlx_cache.chain import Chain
from omlx_cache.cold import ColdTier
from omlx_cache.hot import HotTier
from omlx_cache.keys import namespace
from omlx_cache.plan import Needs, plan_restore
from omlx_cache.record_file import HostArray, HostRecord, Identity
from omlx_cache.records import IndexEntry, Kind
from omlx_cache.scan import scan

from bench.shapes import SHAPES, Subject, random_model
from omlx.engine.engine import Engine
from omlx.engine.sequence import SequenceSpec
from omlx.messages.load_spec import EngineConfig
from omlx.messages.request import Limits, Sampling

GIB = 1 << 30
CHUNK = 512
TOGETHER, OWN = 16, 32
"""Prompts that arrive together, and tokens that each has for itself."""


def accelerated() -> bool:
    return "gpu" in str(mx.default_device())


def open_store(model: Any, folder: Path | None) -> PrefixStore:
    config = StoreConfig(
        fingerprint="bench", hot_bytes=16 * GIB,
        folder=str(folder) if folder else "", cold_bytes=32 * GIB if folder else 0, write_queue_bytes=4 * GIB,
    )  # fmt: skip
    return PrefixStore(CacheLayout(model), config)


def answer(model: Any, store: PrefixStore | None, tokens: list[int]) -> tuple[float, int, list[Any]]:
    """Seconds until the first token is there, how many tokens were restored, and the caches."""
    began = time.perf_counter()
    if store is None:
        capture, caches, position = None, make_prompt_cache(model), 0
    else:
        match = store.lookup(tokens)
        capture, caches, position = store.begin(tokens, match=match), match.caches, match.cached_tokens
    restored = position
    while position < len(tokens):
        end = min(len(tokens), capture.chunk_end(position, CHUNK) if capture else position + CHUNK)
        logits = model(mx.array([tokens[position:end]]), cache=caches)
        mx.async_eval([cache.state for cache in caches])
        if capture:
            capture.after_chunk(caches, end)
        position = end
    int(mx.argmax(logits[0, -1]))
    seconds = time.perf_counter() - began
    if capture:
        capture.finish(caches, tokens)
    return seconds, restored, caches


def median(rounds: int, run: Callable[[], float]) -> float:
    return statistics.median(run() for _ in range(rounds))


def forget_files(folder: Path) -> None:
    """Ask the system to drop these files from its file cache, so that they are read from the disk."""
    for path in folder.glob("??/*.safetensors"):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def measure_prefix(shape: str, model: Any, length: int, rounds: int, folder: Path) -> dict[str, Any]:
    vocabulary = SHAPES[shape]["vocab_size"]
    tokens = [(at * 131 + at // 7) % (vocabulary - 10) for at in range(length)]
    other = [(token + 3) % vocabulary for token in tokens]
    plain = lambda: answer(model, None, other)[0]  # noqa: E731
    plain()  # Kernels of these shapes are compiled.
    store = open_store(model, folder)
    answer(model, store, tokens)
    cold = median(rounds, plain)
    hot = median(rounds, lambda: answer(model, store, tokens)[0])
    restored = answer(model, store, tokens)[1]
    caches = answer(model, store, tokens)[2]
    step = median(20, lambda: one_step(model, caches))
    began = time.perf_counter()
    store.close(600)
    written = time.perf_counter() - began
    from_disk, plain_read = [], []
    size = sum(path.stat().st_size for path in folder.glob("??/*.safetensors"))
    for _ in range(rounds):
        forget_files(folder)
        began = time.perf_counter()
        for path in folder.glob("??/*.safetensors"):
            path.read_bytes()
        plain_read.append(time.perf_counter() - began)
        forget_files(folder)
        reopened = open_store(model, folder)
        from_disk.append(answer(model, reopened, tokens)[0])
        assert reopened.stats().tokens_from_disk == restored
        reopened.close(0)
    disk, read = statistics.median(from_disk), statistics.median(plain_read)
    return {
        "shape": shape, "prompt tokens": length, "restored tokens": restored, "restored MB": size / 1e6,
        "computed ms": cold * 1e3, "one step ms": step * 1e3, "from RAM ms": hot * 1e3, "from disk ms": disk * 1e3,
        "RAM, share of computed": hot / cold, "disk, share of computed": disk / cold,
        "RAM GB/s": size / 1e9 / max(1e-9, hot - step), "disk GB/s": size / 1e9 / max(1e-9, disk - step),
        "plain read GB/s": size / 1e9 / read, "written GB/s": size / 1e9 / written,
    }  # fmt: skip


def one_step(model: Any, caches: list[Any]) -> float:
    began = time.perf_counter()
    int(mx.argmax(model(mx.array([[1]]), cache=caches)[0, -1]))
    return time.perf_counter() - began


def measure_sharing(shape: str, subject: Subject, length: int, rounds: int) -> dict[str, Any]:
    """Seconds until the last of the first tokens, of one prompt and of `TOGETHER` with `length` tokens in common."""
    vocabulary = SHAPES[shape]["vocab_size"]

    def ask(count: int, number: int, *, stored: bool) -> tuple[float, int]:
        shared = [(at * 61 + at // 5 + number * 17) % (vocabulary - 10) for at in range(length)]
        engine = Engine(
            subject.ours, EngineConfig(context_length=2 * length + 256, max_concurrent_requests=count),
            PrefixStore(subject.ours.layout, StoreConfig(fingerprint="bench", hot_bytes=16 * GIB)) if stored else None,
        )  # fmt: skip
        began = time.perf_counter()
        for at in range(count):
            own = [(at * 31 + place * 7 + 1) % (vocabulary - 10) for place in range(OWN)]
            limits = Limits(num_predict=1)
            engine.add(SequenceSpec(id=at, tokens=shared + own, sampling=Sampling(temperature=0), limits=limits))
        while engine.has_work:
            engine.step()
        return time.perf_counter() - began, engine.tokens_read

    ask(2, 0, stored=True)  # Kernels of these shapes are compiled.
    one = median(rounds, lambda: ask(1, 1, stored=True)[0])
    many = median(rounds, lambda: ask(TOGETHER, 2, stored=True)[0])
    apart = ask(TOGETHER, 3, stored=False)[0]
    return {
        "prompts": TOGETHER, "tokens in common": length, "own tokens": OWN,
        "computed tokens": ask(TOGETHER, 4, stored=True)[1], "one ms": one * 1e3, "together ms": many * 1e3,
        "together, of one": many / one, "without a store ms": apart * 1e3, "together, of without": many / apart,
    }  # fmt: skip


def measure_cost(shape: str, model: Any, length: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Prefill with and without a capture, turn by turn; decode steps while the writer is busy and while it is not."""
    vocabulary = SHAPES[shape]["vocab_size"]
    store = open_store(model, folder)
    prompt = [at % vocabulary for at in range(length)]
    answer(model, store, prompt)
    without, stored = [], []
    for number in range(rounds):
        fresh = [(token * 7 + number + 11) % vocabulary for token in prompt]
        without.append(answer(model, None, fresh)[0])
        stored.append(answer(model, store, fresh)[0])
    caches = answer(model, store, prompt[: CHUNK * 2])[2]
    steps: dict[str, list[float]] = {"idle": [], "busy": []}
    for _ in range(3):
        steps["idle"] += [one_step(model, caches) for _ in range(20)]
        for held in store.hot.dirty()[:64]:
            store.cold.write(host(store, held.record), held.used, held.record)  # type: ignore[union-attr]
        steps["busy"] += [one_step(model, caches) for _ in range(20)]
        store.cold.flush(600)  # type: ignore[union-attr]
        store.tick()
    ticks = median(1000, lambda: timed(store.tick))
    store.close(0)
    return {
        "prefill with capture, of without": statistics.median(stored) / statistics.median(without),
        "step while writing, of idle": statistics.median(steps["busy"]) / statistics.median(steps["idle"]),
        "tick us": ticks * 1e6,
    }  # fmt: skip


def host(store: PrefixStore, record: Any) -> HostRecord:
    identity = Identity(record.piece, record.kind, store.namespace, record.skip)
    return HostRecord(identity, store.layout.to_host(record.arrays), record.meta)


def timed(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def measure_index(count: int, rounds: int, folder: Path) -> dict[str, Any]:
    """A folder's index with this many blocks of 256 tokens; their files play no part."""
    space = namespace("bench", "", 256)
    depth = 128
    tier = ColdTier(folder, space, model="bench", max_bytes=64 * GIB)
    wanted = list(range(256 * depth))
    added = 0

    def fill(index: Any) -> None:
        nonlocal added
        number = 0
        while added < count:
            tokens = wanted if not number else [(token * 31 + number) % 100_000 for token in wanted]
            with index._transaction():  # One for many: filling the folder is not what is measured.
                for piece in Chain(space, 256, tokens).blocks[: count - added]:
                    index._insert(IndexEntry(piece, Kind.KV, 4096), space, float(number), 0)
                    added += 1
            number += 1

    tier.change(fill)
    tier.flush(3600)
    record = HostRecord(Identity(Chain(space, 256, wanted[:256]).blocks[0], Kind.KV, space), (tiny_array(),), "")
    tier.write(record, 1.0, None)
    tier.close(60)

    def open_it() -> float:
        began = time.perf_counter()
        opened = ColdTier(folder, space, model="bench", max_bytes=64 * GIB)
        seconds = time.perf_counter() - began
        opened.close(5)
        return seconds

    opening = median(rounds, open_it)
    tier = ColdTier(folder, space, model="bench", max_bytes=64 * GIB)

    ram, needs = HotTier(0, 0), Needs(frozenset({Kind.KV}))

    def look_up(clock: Callable[[], float]) -> float:
        began = clock()
        chain = Chain(space, 256, wanted)
        found = scan(chain, ram, tier, needs)
        plan = plan_restore(found.levels, 256, needs, len(chain))
        seconds = clock() - began
        assert plan.position == len(wanted) - 1
        return seconds

    looking = median(max(rounds, 20), lambda: look_up(time.perf_counter))
    working = median(max(rounds, 20), lambda: look_up(time.process_time))
    tier.close(5)
    return {
        "blocks": count, "open ms": opening * 1e3, "look up 32k tokens ms": looking * 1e3,
        "of that, CPU ms": working * 1e3,
        "index MB": (folder / "index.sqlite").stat().st_size / 1e6,
    }  # fmt: skip


def tiny_array() -> HostArray:
    return HostArray("U8", (8,), memoryview(b"12345678"))


def show(title: str, figures: dict[str, Any]) -> None:
    print(f"\n{title}")
    for name, value in figures.items():
        print(f"  {name:34} {value:10.3f}" if isinstance(value, float) else f"  {name:34} {value!s:>10}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-8b" if accelerated() else "smollm2-135m")
    parser.add_argument("--prompt", type=int, default=8192 if accelerated() else 2048)
    parser.add_argument("--blocks", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shared", type=int, default=8192 if accelerated() else 128, help="tokens in common, sharing")
    parser.add_argument("--only", choices=["prefix", "sharing", "cost", "index"])
    parser.add_argument("--folder", type=Path, help="where to put the cache: the disk to be measured")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.quick:
        options.shape, options.prompt, options.shared, options.blocks, options.rounds = "tiny", 600, 300, 500, 2
    root = Path(tempfile.mkdtemp(prefix="omlx-bench-", dir=options.folder))
    measured: dict[str, Any] = {"device": str(mx.default_device()), "blas": str(BLAS)}
    print(f"device {measured['device']}, blas {BLAS}, commit {commit()}")
    shape, rounds = options.shape, options.rounds
    try:
        if options.only != "index":
            subject = random_model(shape)
        if options.only in (None, "prefix"):
            measured["prefix"] = measure_prefix(shape, subject.plain, options.prompt, rounds, root / "prefix")
            show("Prefix", measured["prefix"])
        if options.only in (None, "sharing"):
            measured["sharing"] = measure_sharing(shape, subject, options.shared, rounds)
            show("Sharing", measured["sharing"])
        if options.only in (None, "cost"):
            measured["cost"] = measure_cost(shape, subject.plain, options.prompt // 2, rounds, root / "cost")
            show("Cost", measured["cost"])
        if options.only in (None, "index"):
            measured["index"] = measure_index(options.blocks, rounds, root / "index")
            show("Index", measured["index"])
    finally:
        shutil.rmtree(root)
    if options.json:
        options.json.write_text(json.dumps(measured, indent=2) + "\n")


def commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()
