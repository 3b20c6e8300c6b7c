"""What the KV store holds and why a prompt missed: /api/omlx/cache."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from litestar import get, post
from omlx_registry import ModelSpec

from omlx.api import admin as wire
from omlx.pool import Pool
from omlx.request import Finish, GenerateRequest, Message
from omlx.server.body import read_json
from omlx.server.given import GivenPool, GivenRegistry, GivenSettings, HttpRequest
from omlx.server.names import find
from omlx.server.stream import Answer, Complete, LiveObject, as_json, encode


@get("/api/omlx/cache")
async def stats(pool: GivenPool) -> Answer:
    ready = [model.spec for model in pool.loaded() if model.state == "ready"]
    found = [(spec, await pool.cache(spec.digest, "stats")) for spec in ready]
    return as_json(wire.CacheResponse([_stats(spec, body) for spec, body in found if body is not None]))


def _stats(spec: ModelSpec, body: dict[str, Any]) -> wire.CacheStats:
    return msgspec.convert({**body, "model": spec.name}, wire.CacheStats)


@post("/api/omlx/cache/clear", status_code=200)
async def clear(request: HttpRequest, registry: GivenRegistry, pool: GivenPool, settings: GivenSettings) -> Answer:
    asked = await read_json(request, wire.CacheClearRequest, settings.max_body)
    if not asked.model:
        await asyncio.gather(*(pool.cache(model.spec.digest, "clear") for model in pool.loaded()))
        return Complete()
    # The model's place in the store is known to its runner alone, so the model is loaded for this.
    async with await pool.acquire(await find(registry, asked.model)) as lease:
        await lease.cache("clear")
    return Complete()


@post("/api/omlx/cache/explain", status_code=200)
async def explain(request: HttpRequest, registry: GivenRegistry, pool: GivenPool, settings: GivenSettings) -> Answer:
    asked = await read_json(request, wire.CacheExplainRequest, settings.max_body)
    return LiveObject(_explain(pool, await find(registry, asked.model), asked))


async def _explain(pool: Pool, spec: ModelSpec, asked: wire.CacheExplainRequest) -> bytes:
    async with await pool.acquire(spec) as lease:
        text = asked.prompt
        if not asked.raw:
            messages = [Message("user", asked.prompt)]
            if spec.system:
                messages.insert(0, Message("system", spec.system))
            async for event in lease.generate(GenerateRequest(id=0, messages=messages, render_only=True)):
                if isinstance(event, Finish):
                    text = event.rendered or ""
        return encode(msgspec.convert(await lease.cache("explain", text), wire.CacheExplanation))
