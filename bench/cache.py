"""What the KV store is worth and what it costs, side by side with computing: `python bench/cache.py`.

    python bench/cache.py                      what suits this device, as a table; --json FILE for the figures
    python bench/cache.py --quick              small everything, to see that it runs
    python bench/cache.py --shape qwen3-8b --prompt 8192 --blocks 100000 --folder /mnt/ssd/kv

Three parts. *Prefix*: time to first token of a prompt computed, restored from RAM and restored from disk (a store
opened anew, the system asked to forget the files it has read), next to one decode step and to reading the same files
plainly. *Cost*: what storing adds to a prefill and to the steps of a running decode. *Index*: opening a folder of many
blocks, and looking up a prompt of 32k tokens. Medians of several rounds. A model of the right shape with random weights
is as fast as a trained one.
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
from mlx_lm.models import qwen3
from mlx_lm.models.cache import make_prompt_cache
from omlx_cache import CacheLayout, PrefixStore, StoreConfig
from omlx_cache.chain import Chain
from omlx_cache.cold import ColdTier
from omlx_cache.container import HostArray, HostRecord, Identity
from omlx_cache.keys import namespace
from omlx_cache.records import Entry, Kind

_COMMON: dict[str, Any] = {
    "model_type": "qwen3", "rms_norm_eps": 1e-6, "max_position_embeddings": 40960, "rope_theta": 1000000.0,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-8b": _COMMON | {
        "hidden_size": 4096, "num_hidden_layers": 36, "intermediate_size": 12288, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": False,
    },
    "qwen3-0.6b": _COMMON | {
        "hidden_size": 1024, "num_hidden_layers": 28, "intermediate_size": 3072, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": True,
    },
    "smollm2-135m": _COMMON | {
        "hidden_size": 576, "num_hidden_layers": 30, "intermediate_size": 1536, "num_attention_heads": 9,
        "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49152, "tie_word_embeddings": True,
    },
    "tiny": _COMMON | {
        "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 512, "tie_word_embeddings": True,
    },
}  # fmt: skip
GIB = 1 << 30
CHUNK = 512


def accelerated() -> bool:
    return "gpu" in str(mx.default_device())


def build(shape: str) -> Any:
    model = qwen3.Model(qwen3.ModelArgs.from_dict(SHAPES[shape]))
    model.set_dtype(mx.bfloat16 if accelerated() else mx.float32)
    mx.eval(model.parameters())
    return model


def open_store(model: Any, folder: Path | None) -> PrefixStore:
    config = StoreConfig(
        fingerprint="bench", hot_bytes=16 * GIB, folder=folder, cold_bytes=32 * GIB if folder else 0,
        write_queue_bytes=4 * GIB,
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


def measure_prefix(shape: str, length: int, rounds: int, folder: Path) -> dict[str, Any]:
    model = build(shape)
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


def measure_cost(shape: str, length: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Prefill with and without a capture, turn by turn; decode steps while the writer is busy and while it is not."""
    model = build(shape)
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
            for piece in Chain(space, 256, tokens).blocks[: count - added]:
                index.adopt(Entry(piece, Kind.KV, 4096), space, float(number))
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

    def look_up() -> float:
        began = time.perf_counter()
        chain = Chain(space, 256, wanted)
        found = tier.find([piece.key for piece in chain.blocks])
        tier.neighbours(chain.parent(depth), Kind.KV, b"")
        assert len(found) == depth
        return time.perf_counter() - began

    looking = median(max(rounds, 20), look_up)
    tier.close(5)
    return {
        "blocks": count, "open ms": opening * 1e3, "look up 32k tokens ms": looking * 1e3,
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
    parser.add_argument("--blocks", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["prefix", "cost", "index"])
    parser.add_argument("--folder", type=Path, help="where to put the cache: the disk to be measured")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.quick:
        options.shape, options.prompt, options.blocks, options.rounds = "tiny", 600, 500, 2
    root = Path(tempfile.mkdtemp(prefix="omlx-bench-", dir=options.folder))
    measured: dict[str, Any] = {"device": str(mx.default_device()), "blas": str(BLAS)}
    print(f"device {measured['device']}, blas {BLAS}, commit {commit()}")
    try:
        if options.only in (None, "prefix"):
            measured["prefix"] = measure_prefix(options.shape, options.prompt, options.rounds, root / "prefix")
            show("Prefix", measured["prefix"])
        if options.only in (None, "cost"):
            measured["cost"] = measure_cost(options.shape, options.prompt // 2, options.rounds, root / "cost")
            show("Cost", measured["cost"])
        if options.only in (None, "index"):
            measured["index"] = measure_index(options.blocks, options.rounds, root / "index")
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
