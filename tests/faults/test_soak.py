"""The soak: mixed traffic on four models of which two fit, through HTTP, for `SOAK_SECONDS` (300; long: 1800).

    make soak                       half an hour, this one and the pool's own

Every answer is right or a defined error; what the processes hold does not grow; the end is as quick as the beginning.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psutil
import pytest

from tests.faults.house import MODEL, House
from tests.support.lessons import LESSONS, Lesson

SECONDS = float(os.environ.get("SOAK_SECONDS", "300"))
CLIENTS = 6
pytestmark = [pytest.mark.slow, pytest.mark.timeout(SECONDS + 600)]
TALKS = [lesson for lesson in LESSONS if not lesson.tools and not lesson.thinking]
GREEDY = {"temperature": 0, "num_predict": 150}


class Seen(NamedTuple):
    """What the server's processes hold: bytes, open files, threads, processes, and files on disk."""

    rss: int
    files: int
    threads: int
    processes: int
    on_disk: int


def look(house: House) -> Seen:
    assert house.process is not None
    server = psutil.Process(house.process.pid)
    family = [server, *server.children(recursive=True)]
    on_disk = sum(len(files) for _, _, files in os.walk(house.models))
    return Seen(house.memory(), server.num_fds(), server.num_threads(), len(family), on_disk)


async def visit(http: httpx.AsyncClient, dice: random.Random, model: str, counts: Counter[str]) -> None:
    """One request of some kind; what is wrong raises."""
    lesson = dice.choice(TALKS)
    chat: dict[str, Any] = {"model": model, "messages": lesson.messages, "stream": False, "options": GREEDY}
    kind = dice.choices(["whole", "stream", "leave", "openai", "wrong", "embed", "list"], [6, 4, 3, 3, 2, 1, 2])[0]
    match kind:
        case "whole":
            answer = await http.post("/api/chat", json=chat)
            assert answer.status_code == 503 or answer.json()["message"]["content"] == lesson.content, answer.text
        case "stream":
            answer = await http.post("/api/chat", json={**chat, "stream": True})
            assert answer.status_code == 503 or '"done":true' in answer.text, answer.text
        case "leave":
            with_story = {**chat, "stream": True, "messages": _story().messages}
            async with http.stream("POST", "/api/chat", json=with_story) as stream:
                async for _ in stream.aiter_raw():
                    break
        case "openai":
            asked = {"model": model, "messages": lesson.messages, "temperature": 0, "max_tokens": 150}
            answer = await http.post("/v1/chat/completions", json=asked)
            good = answer.status_code == 503 or answer.json()["choices"][0]["message"]["content"] == lesson.content
            assert good, answer.text
        case "wrong":
            answer = await http.post("/api/chat", json={"model": dice.choice([model, "nope"]), "messages": "x"})
            assert answer.status_code == 400, answer.text
        case "embed":
            answer = await http.post("/api/embed", json={"model": model, "input": ["a", "b"]})
            assert answer.status_code in (200, 503), answer.text
        case _:
            for path in ("/api/tags", "/api/ps", "/metrics", "/api/omlx/status"):
                assert (await http.get(path)).status_code == 200
    counts[kind] += 1


def _story() -> Lesson:
    return next(lesson for lesson in LESSONS if lesson.name == "story")


def test_hours_of_traffic_leave_no_trace(tmp_path: Path) -> None:
    """No growth of memory, files, threads, processes; the median of the last third is that of the first."""
    env = {"OMLX_MAX_LOADED_MODELS": "2", "OMLX_KEEP_ALIVE": "20", "OMLX_HOT_CACHE_MAX_SIZE": "64MB"}
    with House(tmp_path, env=env) as house:
        house.furnish()
        models = [MODEL, *(f"copy{at}" for at in range(3))]
        for name in models[1:]:
            # Another text makes it another model to the pool.
            house.post("/api/create", {"model": name, "from": MODEL, "license": name, "stream": False})
        counts: Counter[str] = Counter()
        waits: list[tuple[float, float]] = []
        seen: list[Seen] = []
        begun = time.monotonic()

        async def client(number: int) -> None:
            dice = random.Random(number)
            async with httpx.AsyncClient(base_url=house.url, timeout=170, trust_env=False) as http:
                while time.monotonic() < begun + SECONDS:
                    start = time.monotonic()
                    await visit(http, dice, dice.choices(models, [20, 8, 1, 1])[0], counts)
                    waits.append((start - begun, time.monotonic() - start))

        async def watch() -> None:
            while time.monotonic() < begun + SECONDS:
                await asyncio.sleep(SECONDS / 60)
                seen.append(await asyncio.to_thread(look, house))

        async def everybody() -> None:
            await asyncio.gather(*(client(number) for number in range(CLIENTS)), watch())

        asyncio.run(everybody())
        early, late = seen[len(seen) // 3], seen[-1]
        first = sorted(wait for at, wait in waits if at < SECONDS / 3)
        last = sorted(wait for at, wait in waits if at > SECONDS * 2 / 3)
        print(f"\n{SECONDS:.0f} s, {sum(counts.values())} requests: {dict(counts)}")
        print(f"early {early}\nlate  {late}")
        for name, found in (("first third", first), ("last third", last)):
            print(f"{name}: p50 {found[len(found) // 2]:.3f} s, p99 {found[len(found) * 99 // 100]:.3f} s")
        assert late.rss < early.rss * 1.2 + (30 << 20)
        assert late.files <= early.files + CLIENTS * 2
        assert late.threads <= early.threads + 4
        assert late.processes <= 1 + 4  # two models, and while they change places two more
        assert late.on_disk <= early.on_disk + 10
        assert set(counts) == {"whole", "stream", "leave", "openai", "wrong", "embed", "list"}
        house.files_before = late.files
        house.examine()
