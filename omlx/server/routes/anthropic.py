"""/v1/messages and /v1/messages/count_tokens, as Anthropic's clients and Claude Code call them."""

from __future__ import annotations

import msgspec
from litestar import post
from omlx_registry import ModelSpec

from omlx.messages.request import GenerateRequest
from omlx.protocols.anthropic import messages as dialect
from omlx.protocols.anthropic import wire as wire
from omlx.protocols.anthropic.output import MessageAnswer
from omlx.server.body import aside, inline_images, read_json
from omlx.server.dependencies import GivenPool, GivenRegistry, GivenSettings, HttpRequest
from omlx.server.error_formats import ANTHROPIC
from omlx.server.generation import GenerationJob, prepared, stream, whole
from omlx.server.resolve_model import served
from omlx.server.route_info import route_opt
from omlx.server.stream import Answer, LiveObject, LiveStream, event


@post("/v1/messages", status_code=200, opt=route_opt("anthropic", "passed", body="media"))
async def messages(request: HttpRequest, registry: GivenRegistry, pool: GivenPool, settings: GivenSettings) -> Answer:
    body = await read_json(request, wire.MessagesRequest, settings.max_body)
    await inline_images([message.content for message in body.messages], settings)
    dialect.check(body)
    chat = await aside(lambda: dialect.read_chat(body))

    def made(spec: ModelSpec) -> Answer:
        wanted = prepared(dialect.generation(body, chat, spec, settings.unsupported_tools), settings)
        answer = MessageAnswer(body, characters=_characters(wanted))
        job = GenerationJob(spec, [wanted])
        if body.stream:
            return LiveStream(stream(pool, job, answer, _named), ANTHROPIC)
        return LiveObject(whole(pool, job, lambda results, _: answer.whole(results)))

    return await served(registry, body.model, made)


@post("/v1/messages/count_tokens", status_code=200, opt=route_opt("anthropic", "passed", body="media"))
async def count_tokens(
    request: HttpRequest, registry: GivenRegistry, pool: GivenPool, settings: GivenSettings
) -> Answer:
    """Exact: the prompt is rendered and tokenized by the model's own runner, which is loaded for it."""
    body = await read_json(request, wire.CountRequest, settings.max_body)
    await inline_images([message.content for message in body.messages], settings)
    dialect.check_count(body)
    chat = await aside(lambda: dialect.read_chat(body))

    def made(spec: ModelSpec) -> Answer:
        wanted = prepared(dialect.generation(body, chat, spec, settings.unsupported_tools), settings)
        job = GenerationJob(spec, [dialect.counting(wanted, spec.context_length)])
        return LiveObject(whole(pool, job, lambda results, _: wire.TokenCount(results[0].finish.prompt_tokens)))

    return await served(registry, body.model, made)


def _named(item: wire.StreamEvent) -> bytes:
    return event(item, item.type)


def _characters(request: GenerateRequest) -> int:
    """Length of the prompt, roughly: its exact tokens are only known at the end."""
    return sum(len(message.content) + len(message.thinking) for message in request.messages) + sum(
        len(msgspec.json.encode(tool)) for tool in request.tools
    )


HANDLERS = (messages, count_tokens)
