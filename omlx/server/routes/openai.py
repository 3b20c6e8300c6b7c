"""/v1/chat/completions, /v1/completions, /v1/embeddings and /v1/models, as OpenAI's clients call them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from litestar import get, post
from litestar.params import FromPath
from omlx_registry import ModelSpec

from omlx.pool import Pool, RequestFailed
from omlx.protocols.generation import check_embedding, check_top_logprobs
from omlx.protocols.http_error import HTTPError
from omlx.protocols.openai import chat as dialect
from omlx.protocols.openai import completions as completions_dialect
from omlx.protocols.openai import wire as wire
from omlx.server.body import aside, inline_images, read_json
from omlx.server.dependencies import GivenPool, GivenRegistry, GivenSettings, HttpRequest
from omlx.server.error_formats import OPENAI
from omlx.server.generation import GenerationJob, load, prepared, stream, whole
from omlx.server.names import double_quoted, find, required
from omlx.server.resolve_model import served
from omlx.server.route_info import route_opt
from omlx.server.stream import Answer, LiveObject, LiveStream, as_json, encode, event
from omlx.server.vectors import json_numbers, written

DONE = b"data: [DONE]\n\n"


@post("/v1/chat/completions", status_code=200, opt=route_opt("openai", "passed", body="media"))
async def chat_completions(
    request: HttpRequest, registry: GivenRegistry, pool: GivenPool, settings: GivenSettings
) -> Answer:
    body = await read_json(request, wire.ChatCompletionRequest, settings.max_body)
    await inline_images([message.content for message in body.messages], settings)
    chat = await aside(lambda: dialect.read_chat(body))
    check_top_logprobs(body.top_logprobs)

    def made(spec: ModelSpec) -> Answer:
        wanted = dialect.generations(body, chat, spec, settings.unsupported_tools)
        job = GenerationJob(spec, [prepared(one, settings) for one in wanted])
        answer = dialect.ChatCompletionAnswer(body)
        if body.stream and not body.debug_render_only:
            return LiveStream(stream(pool, job, answer, event, DONE), OPENAI)
        return LiveObject(whole(pool, job, lambda results, _: answer.whole(results)))

    return await served(registry, required(body.model), made)


@post("/v1/completions", status_code=200, opt=route_opt("openai", "passed", body="texts"))
async def completions(
    request: HttpRequest, registry: GivenRegistry, pool: GivenPool, settings: GivenSettings
) -> Answer:
    body = await read_json(request, wire.CompletionRequest, settings.max_body)
    prompts = await aside(lambda: completions_dialect.read_prompts(body.prompt))
    check_top_logprobs(body.logprobs or 0)

    def made(spec: ModelSpec) -> Answer:
        wanted = completions_dialect.completions(body, prompts, spec)
        answer = completions_dialect.CompletionAnswer(body, prompts)
        if not wanted:
            return LiveObject(load(pool, spec, answer.loaded()))
        job = GenerationJob(spec, wanted)
        if body.stream:
            return LiveStream(stream(pool, job, answer, event, DONE), OPENAI)
        return LiveObject(whole(pool, job, lambda results, _: answer.whole(results)))

    return await served(registry, required(body.model), made)


@post("/v1/embeddings", status_code=200, opt=route_opt("openai", "passed", body="texts"))
async def embeddings(request: HttpRequest, registry: GivenRegistry, pool: GivenPool, settings: GivenSettings) -> Answer:
    body = await read_json(request, wire.EmbeddingsRequest, settings.max_body)
    inputs = await aside(lambda: completions_dialect.read_inputs(body.input))
    completions_dialect.check_encoding(body.encoding_format)

    def made(spec: ModelSpec) -> Answer:
        check_embedding(body.model, spec)
        return LiveObject(_embed(pool, spec, body, inputs))

    return await served(registry, required(body.model), made, double_quoted)


async def _embed(
    pool: Pool, spec: ModelSpec, body: wire.EmbeddingsRequest, inputs: list[completions_dialect.Input]
) -> bytes:
    async with await pool.acquire(spec) as lease:
        try:
            embedded = await lease.embed(inputs, dimensions=max(0, body.dimensions))
        except RequestFailed as failure:
            # Whatever goes wrong with a text is the request's fault here; only a dead runner is not.
            raise failure if failure.kind == "crashed" else HTTPError(400, failure.message) from None

    def write() -> bytes:
        return encode(completions_dialect.embedding_list(body, embedded.vectors, json_numbers, embedded.prompt_tokens))

    return await written(write, embedded.vectors)


@get("/v1/models", opt=route_opt("openai", "passed"))
async def models(registry: GivenRegistry) -> Answer:
    specs = await asyncio.to_thread(registry.list)
    return as_json(wire.ModelList(data=[_entry(spec, spec.name) for spec in specs]))


@get("/v1/models/{name:path}", opt=route_opt("openai", "passed"))
async def model(name: FromPath[Path], registry: GivenRegistry) -> Answer:
    """`name` may hold slashes (hf.co/org/model)."""
    body = name.as_posix().strip("/")
    return as_json(_entry(await find(registry, body), body))


def _entry(spec: ModelSpec, name: str) -> wire.Model:
    return completions_dialect.model_entry(name, spec.full_name, spec.modified_at.timestamp())


HANDLERS = (chat_completions, completions, embeddings, models, model)
