"""A model divided over several processes against the same model in one, side by side in one run.

    python bench/distributed.py            two processes on this machine: NCCL on CUDA, else ring
    python bench/distributed.py --shape qwen3-8b --ranks 2 --batches 1 16 --steps 64 --json FILE
    python bench/distributed.py --backend jaccl --hostfile hosts.json --model FOLDER   several machines, a real model

Both sides are runner processes as the server starts them, driven through their frames; greedy; tokens per second
from when every sequence has begun until the first ends. Also said: how many of the replies are the same, token for
token (all of them in float32; in 16 bits the order of sums differs and near ties may part).
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
from typing import Any

from bench.folders import write_model
from bench.serving import EDGE, common_rate
from bench.shapes import SHAPES, prompts
from omlx.engine.loader import device
from omlx.messages.load_spec import EngineConfig, LoadSpec
from omlx.messages.request import Delta, Finish, GenerateRequest, Limits, Sampling
from omlx.runner.host import RunnerHost
from omlx.runner.launch import GroupPlan, find_machines

Replies = list[list[int]]


async def stream(host: RunnerHost, prompt: list[int], tokens: int) -> tuple[list[float], list[int]]:
    """When each token came, and all tokens of prompt and reply."""
    request = GenerateRequest(
        id=0,
        raw_prompt=" ".join(f"w{token}" for token in prompt),
        sampling=Sampling(temperature=0),
        limits=Limits(num_predict=tokens),
        return_context=True,
    )
    times: list[float] = []
    async for event in host.generate(request):
        if isinstance(event, Delta):
            times += [time.perf_counter()] * event.content.count("w")
        elif isinstance(event, Finish):
            return times, event.context
    raise RuntimeError("a reply without an end")


async def rate(host: RunnerHost, asked: list[list[int]], tokens: int) -> tuple[float, Replies]:
    found = await asyncio.gather(*(stream(host, prompt, tokens) for prompt in asked))
    return common_rate([times for times, _ in found]), [reply for _, reply in found]


async def side(host: RunnerHost, spec: LoadSpec, options: argparse.Namespace) -> dict[int, tuple[float, Replies]]:
    """By batch size: the median rate and the replies of one side, which is unloaded afterwards."""
    try:
        ready = await host.load(spec, stall_timeout=300)
        print(f"  {ready.weights}")
        found: dict[int, tuple[float, Replies]] = {}
        for batch in options.batches:
            rates: list[float] = []
            replies: Replies = []
            for round in range(options.rounds + 1):
                measured, replies = await rate(host, prompts(batch, options.prompt, uneven=False), options.steps + EDGE)
                rates += [measured] if round else []  # the first round compiles
            found[batch] = (statistics.median(rates), replies)
        return found
    finally:
        await host.close()


async def measure(folder: Path, plan: GroupPlan, options: argparse.Namespace) -> list[dict[str, Any]]:
    spec = LoadSpec(
        name="bench", path=str(folder), fingerprint="bench", weights=options.weights,
        engine=EngineConfig(context_length=4096, max_concurrent_requests=max(options.batches)),
    )  # fmt: skip
    one = await side(await RunnerHost.spawn(), spec, options)
    group = await side(await RunnerHost.spawn_group(plan), spec, options)
    return [
        {
            "batch": batch,
            "one": one[batch][0],
            "group": group[batch][0],
            "ratio": group[batch][0] / one[batch][0],
            "same": sum(a == b for a, b in zip(one[batch][1], group[batch][1], strict=True)),
        }
        for batch in options.batches
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cuda = device() == "cuda"
    parser.add_argument("--shape", choices=list(SHAPES), default="qwen3-8b" if cuda else "tiny")
    parser.add_argument("--model", type=Path, help="a model folder instead, at the same place on every machine")
    parser.add_argument("--backend", choices=["ring", "jaccl", "mpi", "nccl"], default="nccl" if cuda else "ring")
    parser.add_argument("--parallel", choices=["auto", "tensor", "pipeline"], default="auto")
    parser.add_argument("--weights", default="auto", help="how the weights are held: auto, float32, bfloat16")
    parser.add_argument("--hostfile", default="")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--prompt", type=int, default=64, help="tokens in a prompt")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    machines = find_machines(options.hostfile, options.ranks)
    plan = GroupPlan(backend=options.backend, parallel=options.parallel, machines=machines)
    with tempfile.TemporaryDirectory(prefix="omlx-bench-") as root:
        folder = options.model or Path(root) / "model"
        if options.model is None:
            # In a process of its own, which gives the device's memory back.
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                pool.apply(write_model, (folder, options.shape))
        rows = asyncio.run(measure(folder, plan, options))
    ranks = len(machines.hosts)
    for row in rows:
        print(
            f"batch {row['batch']:<4} one process {row['one']:,.1f}  {ranks} ranks {row['group']:,.1f} tok/s"
            f"  ratio {row['ratio']:.2f}  same replies {row['same']} of {row['batch']}"
        )
    if options.json:
        options.json.write_text(json.dumps({"device": device(), "plan": str(plan), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
