"""Through HTTP (server, runner, NDJSON streams) against the engine alone, side by side in one run.

    python bench/serving.py                    the shape that suits this device; --json FILE for the figures
    python bench/serving.py --shape qwen3-0.6b --batches 1 16 --steps 128 --rounds 3

A model with random weights is written to a temporary folder and imported by hard link. Then the two take turns:
`omlx serve` as a user starts it, with as many streams of /api/generate as the batch is large, read by a client in a
process of its own; and the same folder in an engine in this process. Greedy; tokens per second while all sequences
run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from omlx.engine import blas

BLAS = blas.prepare()

import mlx.core as mx
from omlx_registry import Registry

from bench.folders import write_model
from bench.shapes import SHAPES, prompts
from omlx.engine.engine import Engine
from omlx.engine.loader import LoadedModel, device, load_model
from omlx.engine.sequence import SequenceSpec
from omlx.messages.load_spec import EngineConfig, LoadSpec
from omlx.messages.request import Limits, Sampling
from tests.support.server import ServerProcess

NAME = "bench"
CONTEXT = 8192
EDGE = 8
"""Tokens of each sequence at the beginning that are not counted."""


# ---------------------------------------------------------------- the two sides
def alone(model: LoadedModel, asked: list[list[int]], tokens: int) -> float:
    """Tokens per second of the engine, called in a loop."""
    engine = Engine(model, EngineConfig(context_length=CONTEXT, max_concurrent_requests=len(asked)))
    for at, prompt in enumerate(asked):
        limits = Limits(num_predict=tokens)
        engine.add(SequenceSpec(id=at, tokens=prompt, sampling=Sampling(temperature=0), limits=limits))
    times: list[list[float]] = [[] for _ in asked]
    while engine.has_work:
        for output in engine.step():
            times[output.id] += [time.perf_counter()] * len(output.tokens)
    mx.clear_cache()
    return common_rate(times)


def through_http(port: int, asked: list[list[int]], tokens: int) -> float:
    """The same through the server. The client is a process of its own: it must not slow the engine's."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_client, (port, asked, tokens))


def _client(port: int, asked: list[list[int]], tokens: int) -> float:
    async def all_streams() -> list[list[float]]:
        return await asyncio.gather(*(_stream(port, prompt, tokens) for prompt in asked))

    return common_rate(asyncio.run(all_streams()))


async def _stream(port: int, prompt: list[int], tokens: int) -> list[float]:
    """When each token of one reply arrived. Reads the socket itself: an HTTP library costs more than the server."""
    body = json.dumps(
        {
            "model": NAME,
            "prompt": " ".join(f"w{token}" for token in prompt),
            "raw": True,
            "options": {"temperature": 0, "num_predict": tokens, "num_ctx": CONTEXT},
        }
    ).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /api/generate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    times: list[float] = []
    seen = b""
    while chunk := await reader.read(1 << 16):
        # A line may carry several tokens where the client was slow; each token's text begins with a "w".
        times += [time.perf_counter()] * chunk.count(b"w")
        seen = (seen + chunk)[-2000:]
    writer.close()
    if b'"done":true' not in seen:
        raise RuntimeError(f"the stream ended early: {seen.decode(errors='replace')}")
    return times


def common_rate(times: list[list[float]]) -> float:
    """Tokens per second from when every sequence has begun until the first one ends."""
    begun = max(each[EDGE] for each in times)
    ended = min(each[-1] for each in times)
    if ended <= begun:
        raise RuntimeError("the first sequence ended before the last one began: ask for more --steps")
    return sum(begun < at <= ended for each in times for at in each) / (ended - begun)


# ---------------------------------------------------------------- the run
class Found(NamedTuple):
    batch: int
    alone: list[float]
    http: list[float]

    def row(self, shape: str) -> dict[str, Any]:
        engine, http = statistics.median(self.alone), statistics.median(self.http)
        return {"what": f"{shape} batch {self.batch}", "engine": engine, "http": http, "ratio": http / engine}


def measure(options: argparse.Namespace, root: Path) -> list[Found]:
    folder = root / "model"
    write_model(folder, options.shape)
    Registry(root / "models", []).add_model_folder(NAME, folder)
    model = load_model(
        LoadSpec(name=NAME, path=str(folder), fingerprint="bench", engine=EngineConfig(context_length=CONTEXT))
    )
    most = max(options.batches)
    env = {"OMLX_MAX_CONCURRENT_REQUESTS": str(most), "OMLX_KEEP_ALIVE": "1h", "OMLX_SPARE_RUNNER": "false"}
    found = [Found(batch, [], []) for batch in options.batches]
    with ServerProcess(root, env=env) as server:
        tokens = options.steps + EDGE
        for at in range(options.rounds + 1):
            for each in found:
                asked = prompts(each.batch, options.prompt, uneven=False)
                asked = [[(token + at * 17 + row) % 500 + 1 for token in one] for row, one in enumerate(asked)]
                pair = (alone(model, asked, tokens), through_http(server.port, asked, tokens))
                if at:  # the first round loads and compiles
                    each.alone.append(pair[0])
                    each.http.append(pair[1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=list(SHAPES), default="small" if device() == "cpu" else "qwen3-0.6b")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--prompt", type=int, default=64, help="tokens in a prompt")
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"device {device()}, BLAS {BLAS}, mlx {mx.__version__}, {options.steps} tokens, {options.rounds} round(s)")
    with tempfile.TemporaryDirectory(prefix="omlx-bench-") as root:
        rows = [found.row(options.shape) for found in measure(options, Path(root))]
    for row in rows:
        print(
            f"{row['what']:<24} engine {row['engine']:,.1f}  through HTTP {row['http']:,.1f}  ratio {row['ratio']:.2f}"
        )
    if options.json:
        options.json.write_text(json.dumps({"device": device(), "mlx": mx.__version__, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
