"""What the host does for each token: processor time of server and runner, by the number of streams.

    python bench/host.py                     1, 16, 64 and 256 streams; --json FILE for the figures
    python bench/host.py --streams 64 --steps 256 --sampling default

    python bench/host.py --shape qwen3-0.6b --streams 16 64

A model of one tiny layer with SmolLM2's tokenizer, so that nearly nothing is left of the device's work, or one of a
known shape is served by `omlx serve` as a user starts it; a client in a process of its own reads as many streams of
/api/chat. Processor time is what counts, so that a busy machine does not change the figures much. *Runner* is the
thread that owns the model, which launches the device's work too; *threads* are the runner's others, the device's own
work on a CPU included.
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

blas.prepare()

import httpx
import mlx.core as mx
import psutil
from mlx.utils import tree_flatten
from mlx_lm.models import llama
from omlx_registry import Registry

from bench.folders import write_model, write_smollm2
from bench.shapes import SHAPES
from tests.support.server import ServerProcess

NAME = "bench"
_TINY = {"hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 16, "num_attention_heads": 1}
_KEYS = {"num_key_value_heads": 1, "head_dim": 16}
SAMPLINGS: dict[str, dict[str, Any]] = {"greedy": {"temperature": 0}, "default": {"seed": 1}}


def write_tiny(folder: Path) -> None:
    """SmolLM2's tokenizer and template around a model of one tiny layer with random weights."""
    write_smollm2(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text()) | _TINY | _KEYS | {"eos_token_id": []}
    path.write_text(json.dumps(config))
    (folder / "generation_config.json").write_text("{}")
    model = llama.Model(llama.ModelArgs.from_dict(config))
    mx.save_safetensors(
        str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())), metadata={"format": "mlx"}
    )


class Client(NamedTuple):
    """What the clients saw, in seconds."""

    first: list[float]
    wall: float
    lines: int
    tokens: int


class Clients:
    """A process of its own that asks: it is started once, for its imports take seconds."""

    def __init__(self) -> None:
        self._pool = multiprocessing.get_context("spawn").Pool(1)

    def __enter__(self) -> Clients:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.terminate()

    def ask(self, port: int, streams: int, steps: int, words: int, options: dict[str, Any]) -> Client:
        """`streams` different chats at once, each of `steps` tokens."""
        return self._pool.apply(_clients, (port, streams, steps, words, options))


def _clients(port: int, streams: int, steps: int, words: int, options: dict[str, Any]) -> Client:
    async def stream(number: int) -> tuple[float, int, int]:
        begins = time.time_ns() % 9973
        text = " ".join(f"w{(number * 7919 + at * 31 + begins) % 9973 + 4}" for at in range(words))
        body = json.dumps(
            {
                "model": NAME,
                "messages": [{"role": "user", "content": text}],
                "options": {"num_predict": steps, "num_ctx": 4096, **options},
            }
        ).encode()
        begun = time.perf_counter()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST /api/chat HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        first, lines, seen = 0.0, 0, b""
        while chunk := await reader.read(1 << 16):
            count = chunk.count(b'"done":false')
            if count and not first:
                first = time.perf_counter() - begun
            lines += count
            seen = (seen + chunk)[-2000:]
        writer.close()
        if b'"done":true' not in seen:
            raise RuntimeError(f"the stream ended early: {seen.decode(errors='replace')}")
        return first, lines, int(seen.split(b'"eval_count":')[1].split(b",")[0])

    async def all_streams() -> Client:
        begun = time.perf_counter()
        found = await asyncio.gather(*map(stream, range(streams)))
        wall = time.perf_counter() - begun
        return Client([one[0] for one in found], wall, sum(one[1] for one in found), sum(one[2] for one in found))

    return asyncio.run(all_streams())


class Used(NamedTuple):
    """Processor seconds."""

    server: float
    main: float
    threads: float


def used(server: psutil.Process, runner: psutil.Process) -> Used:
    def seconds(process: psutil.Process) -> dict[int, float]:
        return {one.id: one.user_time + one.system_time for one in process.threads()}

    threads = seconds(runner)
    main = threads.pop(runner.pid)
    return Used(sum(seconds(server).values()), main, sum(threads.values()))


def runner_of(server: psutil.Process) -> psutil.Process:
    """The process that serves the model: of those that are runners, the one that has worked most."""
    runners = [child for child in server.children() if "omlx.runner" in child.cmdline()]
    return max(runners, key=lambda process: sum(process.cpu_times()[:2]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", nargs="+", type=int, default=[1, 16, 64, 256])
    parser.add_argument("--steps", type=int, default=96)
    parser.add_argument("--words", type=int, default=200, help="in a prompt; each is one token of a known shape")
    parser.add_argument("--shape", choices=[*SHAPES], help="instead of the tiny model")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--sampling", choices=[*SAMPLINGS], default="greedy")
    parser.add_argument("--folder", type=Path, help="keep the model there")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        folder = options.folder or root / "model"
        if not folder.exists():
            write_model(folder, options.shape) if options.shape else write_tiny(folder)
        Registry(root / "models", []).add_model_folder(NAME, folder)
        env = {"OMLX_KEEP_ALIVE": "1h", "OMLX_SPARE_RUNNER": "false"}
        with Clients() as clients, ServerProcess(root, env=env) as server:
            assert server.process is not None
            process = psutil.Process(server.process.pid)
            clients.ask(server.port, 4, 8, options.words, SAMPLINGS[options.sampling])
            runner = runner_of(process)
            for streams in options.streams:
                found = [measure(clients, server, process, runner, streams, options) for _ in range(options.rounds)]
                row = {name: statistics.median(each[name] for each in found) for name in found[0]}
                rows.append(row)
                print("  ".join(f"{name} {value:,.2f}" for name, value in row.items()), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


def measure(
    clients: Clients,
    server: ServerProcess,
    process: psutil.Process,
    runner: psutil.Process,
    streams: int,
    options: argparse.Namespace,
) -> dict[str, float]:
    def steps() -> int:
        text = httpx.get(f"{server.url}/metrics", trust_env=False).text
        lines = [line for line in text.splitlines() if line.startswith("omlx_decode_steps_total{")]
        return sum(int(float(line.split()[-1])) for line in lines)

    before, steps_before = used(process, runner), steps()
    seen = clients.ask(server.port, streams, options.steps, options.words, SAMPLINGS[options.sampling])
    after = used(process, runner)
    cost = [1e6 * (now - then) / seen.tokens for now, then in zip(after, before, strict=True)]
    return {
        "streams": streams,
        "server µs": cost[0],
        "runner µs": cost[1],
        "threads µs": cost[2],
        "runner ms/step": cost[1] * streams / 1e3,
        "server ms/step": cost[0] * streams / 1e3,
        "steps": steps() - steps_before,
        "lines/token": seen.lines / seen.tokens,
        "tok/s": seen.tokens / seen.wall,
        "first p50 ms": 1e3 * statistics.median(seen.first),
        "first max ms": 1e3 * max(seen.first),
    }


if __name__ == "__main__":
    main()
