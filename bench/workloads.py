"""What the servers are made to do: every workload is a coroutine that drives one server and returns its figures.

The texts are drawn anew for each server and round, of the same lengths: nothing is cached unless the workload itself
comes back to it. Names of figures end with their unit; `more_is_better` says which way is better.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from statistics import median
from typing import NamedTuple

from omlx.bench.figures import decode_rate, percentile, whole_rate
from omlx.bench.prompts import PromptWriter
from omlx.bench.target import BenchTarget, TimedReply, ask, calibrate

Figures = dict[str, float]


class Sizes(NamedTuple):
    """Lengths in tokens. `gap` is the mean time between arrivals in seconds."""

    prompt: int
    answer: int
    long: int
    """A document or a system prompt that is worth keeping."""
    turns: int
    result: int
    """What a tool returns in the agent trace."""
    said: int
    """What the agent answers each turn."""
    arrivals: int
    gap: float
    bursts: tuple[int, int] = (8, 30)


SIZES = {
    "gpu": Sizes(prompt=256, answer=128, long=8192, turns=20, result=384, said=32, arrivals=32, gap=0.04),
    "gpu-large": Sizes(prompt=256, answer=64, long=8192, turns=20, result=384, said=16, arrivals=24, gap=0.08),
    "cpu": Sizes(prompt=64, answer=24, long=512, turns=20, result=64, said=6, arrivals=8, gap=1.0),
    "quick": Sizes(prompt=24, answer=12, long=192, turns=4, result=24, said=4, arrivals=6, gap=0.05, bursts=(4, 10)),
}


class Scene(NamedTuple):
    """One server on its turn."""

    target: BenchTarget
    writer: PromptWriter
    sizes: Sizes


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def with_system(system: str, question: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": system}, *user(question)]


async def together(scene: Scene, count: int, prompt: int, answer: int) -> list[TimedReply]:
    """`count` different requests at once."""
    asked = [user(scene.writer.prompt(prompt)) for _ in range(count)]
    return await asyncio.gather(*(ask(scene.target, each, answer) for each in asked))


async def warm_up(scene: Scene) -> Figures:
    """Load the model, and compile what the workloads will meet: a long prompt, and batches of every size up to 16."""
    await calibrate(scene.target, scene.writer)
    await asyncio.gather(*(ask(scene.target, user(scene.writer.prompt(16)), 8 + at) for at in range(16)))
    await together(scene, 1, scene.sizes.long, 2)
    await together(scene, 1, scene.sizes.prompt, 16)
    return {}


# ---------------------------------------------------------------- throughput
async def single(scene: Scene) -> Figures:
    """One stream alone."""
    sizes = scene.sizes
    (reply,) = await together(scene, 1, sizes.prompt, sizes.answer)
    decode = decode_rate([reply])
    return ({} if decode is None else {"decode tok/s": decode}) | {
        "whole tok/s": whole_rate([reply]),
        "first token s": reply.first_token_s,
    }


async def sixteen(scene: Scene) -> Figures:
    """Sixteen at once."""
    return await at_once(scene, 16)


async def sixtyfour(scene: Scene) -> Figures:
    """Sixty-four at once."""
    return await at_once(scene, 64)


async def two_hundred_fifty_six(scene: Scene) -> Figures:
    """As many at once as the largest batch holds."""
    return await at_once(scene, 256)


async def at_once(scene: Scene, count: int) -> Figures:
    replies = await together(scene, count, scene.sizes.prompt, scene.sizes.answer)
    firsts = [each.first_token_s for each in replies]
    return {
        "whole tok/s": whole_rate(replies),
        "first token p50 s": median(firsts),
        "first token p95 s": percentile(firsts, 0.95),
    }


async def burst(scene: Scene) -> Figures:
    """Eight at once, then thirty: more work must not make a server slower."""
    few, many = scene.sizes.bursts
    rates = [whole_rate(await together(scene, count, scene.sizes.prompt, scene.sizes.answer)) for count in (few, many)]
    return {f"{few} at once tok/s": rates[0], f"{many} at once tok/s": rates[1], "many of few": rates[1] / rates[0]}


# ---------------------------------------------------------------- waiting
async def contended(scene: Scene) -> Figures:
    """A short question while four answers stream and a long prompt is read."""
    sizes = scene.sizes
    begun = [asyncio.Event() for _ in range(4)]
    streams = [
        asyncio.create_task(ask(scene.target, user(scene.writer.prompt(sizes.prompt)), sizes.answer * 3, begun=each))
        for each in begun
    ]
    await asyncio.gather(*(each.wait() for each in begun))
    reading = asyncio.create_task(ask(scene.target, user(scene.writer.prompt(sizes.long)), 4))
    await asyncio.sleep(0.02)
    question = await ask(scene.target, user(scene.writer.prompt(16)), 4)
    long, *_ = await asyncio.gather(reading, *streams)
    return {"first token s": question.first_token_s, "first token of the long prompt s": long.first_token_s}


async def poisson(scene: Scene) -> Figures:
    """Arrivals by chance, prompts and answers of mixed lengths; the same chance for every server."""
    sizes = scene.sizes
    chance = random.Random(18)
    tasks = []
    for _ in range(sizes.arrivals):
        prompt = chance.choice((sizes.prompt // 2, sizes.prompt, sizes.prompt * 4))
        answer = chance.choice((sizes.answer // 4, sizes.answer // 2, sizes.answer))
        tasks.append(asyncio.create_task(ask(scene.target, user(scene.writer.prompt(prompt)), answer)))
        await asyncio.sleep(chance.expovariate(1 / sizes.gap))
    replies = await asyncio.gather(*tasks)
    firsts = [each.first_token_s for each in replies]
    return {
        "first token p50 s": median(firsts),
        "first token p95 s": percentile(firsts, 0.95),
        "whole tok/s": whole_rate(replies),
    }


# ---------------------------------------------------------------- coming back
async def agent(scene: Scene) -> Figures:
    """An agent's session: a system prompt, then turns whose prompt is all that was said, and a tool's result."""
    sizes = scene.sizes
    messages = with_system(scene.writer.text(sizes.result), scene.writer.prompt(16))
    total, firsts = 0.0, []
    for _ in range(sizes.turns):
        reply = await ask(scene.target, messages, sizes.said)
        total += reply.whole_s
        firsts.append(reply.first_token_s)
        messages = [
            *messages,
            {"role": "assistant", "content": reply.text},
            {"role": "user", "content": scene.writer.prompt(sizes.result)},
        ]
    return {"all turns s": total, "first token p50 s": median(firsts)}


async def shared(scene: Scene) -> Figures:
    """One long system prompt: a first question, then eight different ones at once."""
    sizes = scene.sizes
    system = scene.writer.text(sizes.long)
    first = await ask(scene.target, with_system(system, scene.writer.prompt(16)), 4)
    asked = [with_system(system, scene.writer.prompt(16)) for _ in range(8)]
    replies = await asyncio.gather(*(ask(scene.target, each, sizes.said) for each in asked))
    firsts = [each.first_token_s for each in replies]
    return {"cold first token s": first.first_token_s, "of eight p50 s": median(firsts), "of eight last s": max(firsts)}


WORKLOADS: dict[str, Callable[[Scene], Awaitable[Figures]]] = {
    "single": single,
    "sixteen": sixteen,
    "burst": burst,
    "contended": contended,
    "poisson": poisson,
    "agent": agent,
    "shared": shared,
}


LARGE: dict[str, Callable[[Scene], Awaitable[Figures]]] = {"sixtyfour": sixtyfour, "256": two_hundred_fifty_six}
"""For a GPU, where they are asked for by name."""


# ---------------------------------------------------------------- with the server in hand
class Restartable(NamedTuple):
    """`stop` ends the server as a user would, `start` waits until it answers."""

    stop: Callable[[], object]
    start: Callable[[], object]


async def restart(scene: Scene, server: Restartable) -> Figures:
    """A long conversation goes on after the server was stopped and started: what does its prefix cost again?"""
    system = scene.writer.text(scene.sizes.long)
    cold = await ask(scene.target, with_system(system, scene.writer.prompt(16)), 4)
    await asyncio.to_thread(server.stop)
    await asyncio.to_thread(server.start)
    # Loads the model and compiles what a first and a second question with a long system prompt need: not measured here.
    other = scene.writer.text(scene.sizes.long)
    for _ in range(2):
        await ask(scene.target, with_system(other, scene.writer.prompt(16)), 4)
    again = await ask(scene.target, with_system(system, scene.writer.prompt(16)), 4)
    return {
        "cold first token s": cold.first_token_s,
        "first token after it s": again.first_token_s,
        "share of cold": again.first_token_s / cold.first_token_s,
    }


async def alternate(scenes: tuple[Scene, Scene], turns: int = 3) -> Figures:
    """Two models by turns, each question short."""
    for scene in scenes:
        await ask(scene.target, user(scene.writer.prompt(8)), 2)
    total = 0.0
    for at in range(turns * 2):
        reply = await ask(scenes[at % 2].target, user(scenes[at % 2].writer.prompt(16)), 8)
        total += reply.whole_s
    return {"six answers s": total}


def more_is_better(figure: str) -> bool:
    return figure.endswith("tok/s") or figure == "many of few"
