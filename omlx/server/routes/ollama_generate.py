"""/api/generate and /api/chat: one generation each, streamed or whole."""

from __future__ import annotations

import time
from typing import Any

from litestar import post
from omlx_registry import ModelSpec

from omlx.messages.request import Delta, Finish, GenerateRequest
from omlx.pool import Pool
from omlx.prompting.stable_prefix import with_stable_prefix
from omlx.protocols.generation import check_top_logprobs
from omlx.protocols.http_error import HTTPError
from omlx.protocols.ollama import translate as dialect
from omlx.protocols.ollama import wire as wire
from omlx.protocols.options import parse_options
from omlx.server.body import read_json, takes_long
from omlx.server.dependencies import GivenPool, GivenRegistry, GivenSettings, HttpRequest
from omlx.server.generation import GenerationJob, load, stream, whole
from omlx.server.names import find, required, single_quoted
from omlx.server.resolve_model import served
from omlx.server.route_info import route_opt
from omlx.server.stream import Answer, LiveObject, LiveStream, as_json, line
from omlx.settings import Settings


@post("/api/generate", status_code=200, opt=route_opt("ollama", "passed", body="media"))
async def generate(request: HttpRequest, registry: GivenRegistry, pool: GivenPool, settings: GivenSettings) -> Answer:
    started = time.monotonic_ns()
    body = await read_json(request, wire.OllamaGenerateRequest, settings.max_body)
    check_top_logprobs(body.top_logprobs)
    if not body.model:
        raise HTTPError(404, single_quoted(""))
    if body.template:
        takes_long()
    answer = dialect.GenerateAnswer(body.model, started, len(body.images))
    if dialect.unloads(body):
        return await _unload(pool, await find(registry, body.model), answer)
    return await served(
        registry,
        body.model,
        lambda spec: _answer(pool, spec, body, dialect.generation(body, spec), answer),
    )


@post("/api/chat", status_code=200, opt=route_opt("ollama", "passed", body="media"))
async def chat(request: HttpRequest, registry: GivenRegistry, pool: GivenPool, settings: GivenSettings) -> Answer:
    started = time.monotonic_ns()
    body = await read_json(request, wire.ChatRequest, settings.max_body)
    check_top_logprobs(body.top_logprobs)
    model = required(body.model)
    images = sum(len(message.images) for message in body.messages)
    answer = dialect.ChatAnswer(body.model, started, images)
    if dialect.unloads(body):
        return await _unload(pool, await find(registry, model), answer)
    return await served(
        registry,
        model,
        lambda spec: _answer(pool, spec, body, _prepared(body, spec, settings), answer),
    )


def _prepared(body: wire.ChatRequest, spec: ModelSpec, settings: Settings) -> GenerateRequest | None:
    """The request, its prefix made stable where the client or the settings ask for it."""
    wanted = dialect.conversation(body, spec, settings.unsupported_tools)
    stable = body.options.get("stable_prefix", settings.stable_prefix_native) is True
    return with_stable_prefix(wanted) if wanted is not None and stable else wanted


async def _unload(pool: Pool, spec: ModelSpec, answer: dialect.Answer) -> Answer:
    await pool.unload(spec.digest)
    return as_json(answer.empty("unload"))


def _answer(
    pool: Pool,
    spec: ModelSpec,
    body: wire.OllamaGenerateRequest | wire.ChatRequest,
    wanted: GenerateRequest | None,
    answer: dialect.Answer,
) -> Answer:
    if wanted is None:
        num_ctx = parse_options(body.options, spec.parameters).limits.num_ctx
        return LiveObject(load(pool, spec, answer.empty("load"), body.keep_alive, num_ctx))
    job = GenerationJob(spec, [wanted], body.keep_alive)
    if body.stream and not wanted.render_only:
        return LiveStream(stream(pool, job, _StreamLines(answer), line))
    return LiveObject(
        whole(pool, job, lambda choices, load_ns: answer.final(choices[0].finish, load_ns, choices[0].delta))
    )


class _StreamLines:
    """The answer as the lines of a stream."""

    def __init__(self, answer: dialect.Answer) -> None:
        self._answer = answer

    def delta(self, _: int, delta: Delta) -> list[Any]:
        return [self._answer.chunk(delta)]

    def finish(self, _: int, finish: Finish, load_ns: int) -> list[Any]:
        return [self._answer.final(finish, load_ns)]

    def end(self) -> list[Any]:
        return []
