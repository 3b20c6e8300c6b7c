"""A *job* is all the generations one HTTP request asks for: usually one, several for `n` or a list of prompts.

Every generating route is the same walk: take a lease, run the job, hand each event to the dialect's writer, and send
what the writer says. This file owns that walk; dialects own the words.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple, Protocol

import msgspec
from omlx_registry import ModelSpec

from omlx.messages.request import Delta, Finish, GenerateRequest
from omlx.pool import Lease, Pool
from omlx.prompting.stable_prefix import with_stable_prefix
from omlx.protocols.ollama.translate import Collected, worth_a_chunk
from omlx.record import RequestRecord, current
from omlx.server.stream import encode
from omlx.settings import Settings

_WAITING_EVENTS = 64
"""Events of a job with several choices that wait for a slow client."""


class GenerationJob(NamedTuple):
    """`wanted` has one request per choice; `keep_alive` in s, None: as it is."""

    spec: ModelSpec
    wanted: Sequence[GenerateRequest]
    keep_alive: float | None = None


def with_headers(request: GenerateRequest, record: RequestRecord) -> GenerateRequest:
    """`request` with what the HTTP request says beside its body: priority, deadline and context."""
    limits = request.limits
    if record.num_ctx and not request.render_only:
        limits = msgspec.structs.replace(limits, num_ctx=record.num_ctx)
    return msgspec.structs.replace(
        request,
        limits=limits,
        priority=record.priority or request.priority,
        deadline=record.deadline,
        trace=record.id,
    )


def prepared(request: GenerateRequest, settings: Settings) -> GenerateRequest:
    """`request` as an agent's is best served; native routes take theirs word for word."""
    return with_stable_prefix(request) if settings.stable_prefix else request


class GenerationResult(NamedTuple):
    """One choice's whole answer."""

    delta: Delta
    finish: Finish


class Writer(Protocol):
    """A dialect's stream of one answer: what to send for an event. `choice` counts from 0, `load_ns` is the wait."""

    def delta(self, choice: int, delta: Delta) -> Iterable[Any]: ...
    def finish(self, choice: int, finish: Finish, load_ns: int) -> Iterable[Any]: ...
    def end(self) -> Iterable[Any]: ...


async def stream(
    pool: Pool, job: GenerationJob, writer: Writer, frame: Callable[[Any], bytes], closing: bytes = b""
) -> AsyncIterator[bytes]:
    """What `writer` says, each thing framed; `closing` ends a stream that went well."""
    last: list[Any] = []
    async with await pool.acquire(job.spec, keep_alive=job.keep_alive) as lease, aclosing(_run(lease, job)) as events:
        async for choice, event in events:
            if isinstance(event, Finish):
                last += writer.finish(choice, event, lease.load_ns)
            elif worth_a_chunk(event):
                chunk = b"".join(frame(item) for item in writer.delta(choice, event))
                if chunk:
                    yield chunk
    # The lease is released before the client reads the end, so that /api/ps agrees with what it was told.
    yield b"".join(frame(item) for item in (*last, *writer.end())) + closing


async def whole(pool: Pool, job: GenerationJob, write: Callable[[list[GenerationResult], int], Any]) -> bytes:
    """`write` of all choices, in order, and of the wait for the model in ns, as JSON."""
    collected = [Collected() for _ in job.wanted]
    finishes: dict[int, Finish] = {}
    async with (
        await pool.acquire(job.spec, keep_alive=job.keep_alive) as lease,
        aclosing(_run(lease, job, whole=True)) as events,
    ):
        load_ns = lease.load_ns
        async for choice, event in events:
            if isinstance(event, Finish):
                finishes[choice] = event
            else:
                collected[choice].add(event)
    answers = [GenerationResult(parts.delta(), finishes[choice]) for choice, parts in enumerate(collected)]
    return encode(write(answers, load_ns))


async def load(pool: Pool, spec: ModelSpec, answer: Any, keep_alive: float | None = None, num_ctx: int = 0) -> bytes:
    """Only load the model, for a context of `num_ctx` tokens where it is not 0; then `answer` as JSON."""
    async with await pool.acquire(spec, keep_alive=keep_alive) as lease:
        lease.serve_context(num_ctx or current().num_ctx)
        return encode(answer)


async def _run(lease: Lease, job: GenerationJob, *, whole: bool = False) -> AsyncGenerator[tuple[int, Delta | Finish]]:
    """The events of all choices, as they come, or each choice's at its end (`whole`).

    Raises RequestFailed; closing it cancels what still runs.
    """
    record = current()
    requests = [with_headers(request, record) for request in job.wanted]
    if len(requests) == 1:
        async with aclosing(lease.generate(requests[0], whole=whole)) as events:
            async for event in events:
                yield 0, event
        return
    queue: asyncio.Queue[tuple[int, Delta | Finish | Exception]] = asyncio.Queue(_WAITING_EVENTS)

    async def feed(choice: int, request: GenerateRequest) -> None:
        try:
            async with aclosing(lease.generate(request, whole=whole)) as events:
                async for event in events:
                    await queue.put((choice, event))
        except Exception as error:  # it is raised where the events are read
            await queue.put((choice, error))

    feeds = [asyncio.create_task(feed(choice, request)) for choice, request in enumerate(requests)]
    try:
        running = len(feeds)
        while running:
            choice, item = await queue.get()
            if isinstance(item, Exception):
                raise item
            running -= isinstance(item, Finish)
            yield choice, item
    finally:
        for task in feeds:
            task.cancel()
        await asyncio.gather(*feeds, return_exceptions=True)
