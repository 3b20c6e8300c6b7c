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
    asked = await read_json(request, wire.OllamaGenerateRequest, settings.max_body)
    check_top_logprobs(asked.top_logprobs)
    if not asked.model:
        raise HTTPError(404, single_quoted(""))
    if asked.template:
        takes_long()
    answer = dialect.GenerateAnswer(asked.model, started, len(asked.images))
    if dialect.unloads(asked):
        return await _unload(pool, await find(registry, asked.model), answer)
    return await served(
        registry,
        asked.model,
        lambda spec: _answer(pool, spec, asked, dialect.generation(asked, spec), answer),
    )


@post("/api/chat", status_code=200, opt=route_opt("ollama", "passed", body="media"))
async def chat(request: HttpRequest, registry: GivenRegistry, pool: GivenPool, settings: GivenSettings) -> Answer:
    started = time.monotonic_ns()
    asked = await read_json(request, wire.ChatRequest, settings.max_body)
    check_top_logprobs(asked.top_logprobs)
    model = required(asked.model)
    images = sum(len(message.images) for message in asked.messages)
    answer = dialect.ChatAnswer(asked.model, started, images)
    if dialect.unloads(asked):
        return await _unload(pool, await find(registry, model), answer)
    return await served(
        registry,
        model,
        lambda spec: _answer(pool, spec, asked, _prepared(asked, spec, settings), answer),
    )


def _prepared(asked: wire.ChatRequest, spec: ModelSpec, settings: Settings) -> GenerateRequest | None:
    """The request, its prefix made stable where the client or the settings ask for it."""
    wanted = dialect.conversation(asked, spec, settings.unsupported_tools)
    stable = asked.options.get("stable_prefix", settings.stable_prefix_native) is True
    return with_stable_prefix(wanted) if wanted is not None and stable else wanted


async def _unload(pool: Pool, spec: ModelSpec, answer: dialect.Answer) -> Answer:
    await pool.unload(spec.digest)
    return as_json(answer.empty("unload"))


def _answer(
    pool: Pool,
    spec: ModelSpec,
    asked: wire.OllamaGenerateRequest | wire.ChatRequest,
    wanted: GenerateRequest | None,
    answer: dialect.Answer,
) -> Answer:
    if wanted is None:
        num_ctx = parse_options(asked.options, spec.parameters).limits.num_ctx
        return LiveObject(load(pool, spec, answer.empty("load"), asked.keep_alive, num_ctx))
    job = GenerationJob(spec, [wanted], asked.keep_alive)
    if asked.stream and not wanted.render_only:
        return LiveStream(stream(pool, job, _StreamLines(answer), line))
    return LiveObject(whole(pool, job, lambda found, load_ns: answer.final(found[0].finish, load_ns, found[0].delta)))


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
