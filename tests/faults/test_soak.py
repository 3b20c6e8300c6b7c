"""The soak: mixed traffic on four models of which not all fit under the cap, through HTTP, for `SOAK_SECONDS` (300).

    make soak                       half an hour

Every answer is right or a defined error; all processes together stay under the cap and hold no more at the end than
early on; the end is as quick as the beginning.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
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
CAP = 700_000_000
"""Bytes that all models together may take: room for two of the four, most of it the processes' own."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(SECONDS + 600)]
TALKS = [lesson for lesson in LESSONS if not lesson.tools and not lesson.thinking]
GREEDY = {"temperature": 0, "num_predict": 150}


class Seen(NamedTuple):
    """What the server holds: bytes, open files, threads; with its children bytes and processes; and files on disk."""

    rss: int
    files: int
    threads: int
    tree: int
    processes: int
    on_disk: int


def look(house: House) -> Seen:
    assert house.process is not None
    server = psutil.Process(house.process.pid)
    family = [server, *server.children(recursive=True)]
    sizes = []
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            sizes.append(process.memory_info().rss)
    on_disk = sum(len(files) for _, _, files in os.walk(house.models))
    return Seen(house.memory(), server.num_fds(), server.num_threads(), sum(sizes), len(sizes), on_disk)


async def visit(http: httpx.AsyncClient, dice: random.Random, model: str, counts: Counter[str]) -> None:
    """One request of some kind; what is wrong raises."""
    lesson = dice.choice(TALKS)
    chat: dict[str, Any] = {"model": model, "messages": lesson.messages, "stream": False, "options": GREEDY}
    kind = dice.choices(["whole", "stream", "leave", "openai", "wrong", "embed", "list"], [6, 4, 3, 3, 2, 1, 2])[0]
    answer: httpx.Response | None = None
    said = ""
    match kind:
        case "whole":
            answer = await http.post("/api/chat", json=chat)
            said = answer.json().get("message", {}).get("content", "")
        case "stream":
            answer = await http.post("/api/chat", json={**chat, "stream": True})
            parts = [json.loads(line) for line in answer.text.splitlines()]
            said = "".join(part.get("message", {}).get("content", "") for part in parts)
        case "openai":
            asked = {"model": model, "messages": lesson.messages, "temperature": 0, "max_tokens": 150}
            answer = await http.post("/v1/chat/completions", json=asked)
            said = answer.json()["choices"][0]["message"]["content"] if answer.status_code == 200 else ""
        case "leave":
            with_story = {**chat, "stream": True, "messages": _story().messages}
            async with http.stream("POST", "/api/chat", json=with_story) as stream:
                async for _ in stream.aiter_raw():
                    break
        case "wrong":
            refused = await http.post("/api/chat", json={"model": dice.choice([model, "nope"]), "messages": "x"})
            assert refused.status_code == 400, refused.text
        case "embed":
            embedded = await http.post("/api/embed", json={"model": model, "input": ["a", "b"]})
            assert embedded.status_code in (200, 503), embedded.text
        case _:
            for path in ("/api/tags", "/api/ps", "/metrics", "/api/omlx/status"):
                assert (await http.get(path)).status_code == 200
    if answer is not None and answer.status_code == 503:
        kind = "busy"
    elif answer is not None:
        assert said == lesson.content, answer.text
    counts[kind] += 1


def _story() -> Lesson:
    return next(lesson for lesson in LESSONS if lesson.name == "story")


def test_hours_of_traffic_leave_no_trace(tmp_path: Path) -> None:
    """No growth of memory, files, threads, processes, nor past the cap; the last third is as quick as the first."""
    env = {"OMLX_MAX_PROCESS_MEMORY": str(CAP), "OMLX_KEEP_ALIVE": "20", "OMLX_HOT_CACHE_MAX_SIZE": "64MB"}
    with House(tmp_path, env=env) as house:
        house.furnish()
        models = [MODEL, *(f"copy{at}" for at in range(3))]
        for name in models[1:]:
            # Another text makes it another model to the pool.
            house.post("/api/create", {"model": name, "from": MODEL, "license": name, "stream": False})
        counts: Counter[str] = Counter()
        waits: list[tuple[float, float]] = []
        seen: list[Seen] = []
        before = look(house)
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
        most = max(found.tree for found in seen)
        first = sorted(wait for at, wait in waits if at < SECONDS / 3)
        last = sorted(wait for at, wait in waits if at > SECONDS * 2 / 3)
        print(f"\n{SECONDS:.0f} s, {sum(counts.values())} requests: {dict(counts)}")
        print(f"start {before}\nearly {early}\nlate  {late}\nmost at once {most} of {CAP} bytes")
        for name, found in (("first third", first), ("last third", last)):
            print(f"{name}: p50 {_part(found, 0.5):.3f} s, p99 {_part(found, 0.99):.3f} s")
        assert late.rss < early.rss * 1.2 + (30 << 20)
        assert late.files <= early.files + CLIENTS * 2
        assert late.threads <= early.threads + 4
        assert late.on_disk <= early.on_disk + 10
        assert most < CAP
        assert _part(last, 0.99) < 2 * _part(first, 0.99) + 1
        assert set(counts) - {"busy"} == {"whole", "stream", "leave", "openai", "wrong", "embed", "list"}
        assert counts["busy"] < sum(counts.values()) / 10
        house.files_before = late.files
        house.examine()


def _part(ordered: list[float], part: float) -> float:
    return ordered[int(len(ordered) * part)]
