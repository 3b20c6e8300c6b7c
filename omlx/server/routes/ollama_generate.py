"""/api/generate and /api/chat: one generation each, streamed or whole."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import aclosing

from litestar import post
from omlx_registry import ModelSpec

from omlx.api import ollama as wire
from omlx.dialect import ollama as dialect
from omlx.dialect.refusal import Refusal
from omlx.pool import Pool
from omlx.request import Finish, GenerateRequest
from omlx.server.body import read_json
from omlx.server.given import GivenPool, GivenRegistry, GivenSettings, HttpRequest
from omlx.server.names import find, required, single_quoted
from omlx.server.stream import Answer, LiveObject, LiveStream, as_json, encode, line


@post("/api/generate", status_code=200)
async def generate(request: HttpRequest, registry: GivenRegistry, pool: GivenPool, settings: GivenSettings) -> Answer:
    started = time.monotonic_ns()
    asked = await read_json(request, wire.GenerateRequest, settings.max_body)
    dialect.check_top_logprobs(asked.top_logprobs)
    if not asked.model:
        raise Refusal(404, single_quoted(""))
    spec = await find(registry, asked.model)
    answer = dialect.GenerateAnswer(asked.model, started, len(asked.images))
    if dialect.unloads(asked):
        return await _unload(pool, spec, answer)
    return _answer(pool, spec, asked, dialect.generation(asked, spec), answer)


@post("/api/chat", status_code=200)
async def chat(request: HttpRequest, registry: GivenRegistry, pool: GivenPool, settings: GivenSettings) -> Answer:
    started = time.monotonic_ns()
    asked = await read_json(request, wire.ChatRequest, settings.max_body)
    dialect.check_top_logprobs(asked.top_logprobs)
    spec = await find(registry, required(asked.model))
    images = sum(len(message.images) for message in asked.messages)
    answer = dialect.ChatAnswer(asked.model, started, images)
    if dialect.unloads(asked):
        return await _unload(pool, spec, answer)
    return _answer(pool, spec, asked, dialect.conversation(asked, spec), answer)


async def _unload(pool: Pool, spec: ModelSpec, answer: dialect.Answer) -> Answer:
    await pool.unload(spec.digest)
    return as_json(answer.empty("unload"))


def _answer(
    pool: Pool,
    spec: ModelSpec,
    asked: wire.GenerateRequest | wire.ChatRequest,
    wanted: GenerateRequest | None,
    answer: dialect.Answer,
) -> Answer:
    if wanted is None:
        return LiveObject(_load(pool, spec, asked.keep_alive, answer))
    if asked.stream and not wanted.render_only:
        return LiveStream(_stream(pool, spec, asked.keep_alive, wanted, answer))
    return LiveObject(_whole(pool, spec, asked.keep_alive, wanted, answer))


async def _load(pool: Pool, spec: ModelSpec, keep_alive: float | None, answer: dialect.Answer) -> bytes:
    async with await pool.acquire(spec, keep_alive=keep_alive):
        return encode(answer.empty("load"))


async def _stream(
    pool: Pool, spec: ModelSpec, keep_alive: float | None, wanted: GenerateRequest, answer: dialect.Answer
) -> AsyncIterator[bytes]:
    last = b""
    async with await pool.acquire(spec, keep_alive=keep_alive) as lease, aclosing(lease.generate(wanted)) as events:
        async for event in events:
            if isinstance(event, Finish):
                last = line(answer.final(event, lease.load_ns))
            elif dialect.worth_a_chunk(event):
                yield line(answer.chunk(event))
    # The lease is released before the client reads "done", so that /api/ps agrees with what it was told.
    yield last


async def _whole(
    pool: Pool, spec: ModelSpec, keep_alive: float | None, wanted: GenerateRequest, answer: dialect.Answer
) -> bytes:
    collected, last = dialect.Collected(), b""
    async with await pool.acquire(spec, keep_alive=keep_alive) as lease, aclosing(lease.generate(wanted)) as events:
        async for event in events:
            if isinstance(event, Finish):
                last = encode(answer.final(event, lease.load_ns, collected.delta()))
            else:
                collected.add(event)
    return last
