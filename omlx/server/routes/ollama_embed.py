"""/api/embed and the older /api/embeddings: text in, vectors out."""

from __future__ import annotations

import time
from typing import Any

from litestar import post
from omlx_registry import ModelSpec

from omlx.pool import Pool, RequestFailed
from omlx.protocols.generation import check_embedding
from omlx.protocols.http_error import HTTPError
from omlx.protocols.ollama import wire as wire
from omlx.protocols.options import parse_options
from omlx.server.body import read_json
from omlx.server.dependencies import GivenPool, GivenRegistry, GivenSettings, HttpRequest
from omlx.server.names import double_quoted, required, single_quoted
from omlx.server.resolve_model import served
from omlx.server.route_info import route_opt
from omlx.server.stream import Answer, LiveObject, encode
from omlx.server.vectors import json_numbers, written


@post("/api/embed", status_code=200, opt=route_opt("ollama", "passed", body="texts"))
async def embed(request: HttpRequest, registry: GivenRegistry, pool: GivenPool, settings: GivenSettings) -> Answer:
    started = time.monotonic_ns()
    body = await read_json(request, wire.EmbedRequest, settings.max_body)
    texts = read_input(body.input)
    if not body.model:
        raise HTTPError(404, single_quoted(""))

    def made(spec: ModelSpec) -> Answer:
        check_embedding(body.model, spec)
        num_ctx = parse_options(body.options).limits.num_ctx
        return LiveObject(_embed(pool, spec, body, texts, num_ctx, started))

    return await served(registry, body.model, made, double_quoted)


@post("/api/embeddings", status_code=200, opt=route_opt("ollama", "passed", body="texts"))
async def embeddings(request: HttpRequest, registry: GivenRegistry, pool: GivenPool, settings: GivenSettings) -> Answer:
    body = await read_json(request, wire.EmbeddingRequest, settings.max_body)

    def made(spec: ModelSpec) -> Answer:
        check_embedding(body.model, spec)
        num_ctx = parse_options(body.options).limits.num_ctx
        return LiveObject(_embed_one(pool, spec, body, num_ctx))

    return await served(registry, required(body.model), made, double_quoted)


def read_input(value: Any) -> list[str]:
    """`input`: a text or a list of them; nothing, "" and [] only load the model. Raises HTTPError."""
    if value is None or value == "":
        return []
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise HTTPError(400, "invalid input type")
    return value


async def _embed(
    pool: Pool, spec: ModelSpec, body: wire.EmbedRequest, texts: list[str], num_ctx: int, started: int
) -> bytes:
    async with await pool.acquire(spec, keep_alive=body.keep_alive) as lease:
        if not texts:
            return encode(wire.EmbedResponse(model=body.model, embeddings=[]))
        try:
            embedded = await lease.embed(
                texts, truncate=body.truncate, num_ctx=num_ctx, dimensions=max(0, body.dimensions)
            )
        except RequestFailed as failure:
            # Whatever goes wrong with a text is the request's fault here; only a dead runner is not.
            raise failure if failure.kind == "crashed" else HTTPError(400, failure.message) from None
        load_ns = lease.load_ns

        def write() -> bytes:
            return encode(
                wire.EmbedResponse(
                    model=body.model,
                    embeddings=[json_numbers(vector) for vector in embedded.vectors],
                    total_duration=max(1, time.monotonic_ns() - started),
                    load_duration=max(1, load_ns),
                    prompt_eval_count=embedded.prompt_tokens,
                )
            )

        return await written(write, embedded.vectors)


async def _embed_one(pool: Pool, spec: ModelSpec, body: wire.EmbeddingRequest, num_ctx: int) -> bytes:
    async with await pool.acquire(spec, keep_alive=body.keep_alive) as lease:
        if not body.prompt:
            return encode(wire.EmbeddingResponse([]))
        try:
            embedded = await lease.embed([body.prompt], truncate=body.truncate, num_ctx=num_ctx)
        except RequestFailed as failure:
            raise failure if failure.kind == "crashed" else HTTPError(500, failure.message) from None
        return encode(wire.EmbeddingResponse([*memoryview(embedded.vectors[0]).cast("f")]))
