"""/v1/responses, as OpenAI's clients and Codex call it; GET and DELETE of responses that are kept."""

from __future__ import annotations

from collections.abc import Sequence

from litestar import delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath
from omlx_registry import ModelSpec

from omlx.messages.request import Message
from omlx.protocols.http_error import HTTPError
from omlx.protocols.openai import responses as dialect
from omlx.protocols.openai import responses_wire as wire
from omlx.protocols.openai.responses_output import Keep, ResponseAnswer, StreamEvent
from omlx.server.body import aside, inline_images, read_json
from omlx.server.dependencies import GivenPool, GivenRegistry, GivenSettings, HttpRequest
from omlx.server.errors import JSON_TYPE
from omlx.server.generation import GenerationJob, prepared, stream, whole
from omlx.server.names import required
from omlx.server.resolve_model import served
from omlx.server.responses_store import ResponsesStore, StoredResponse
from omlx.server.route_info import route_opt
from omlx.server.stream import EVENT_STREAM, Answer, Complete, Framing, LiveObject, LiveStream, as_json, encode, event

GivenStore = NamedDependency[ResponsesStore]


@post("/v1/responses", status_code=200, opt=route_opt("openai", "passed", body="media"))
async def create(
    request: HttpRequest, registry: GivenRegistry, pool: GivenPool, settings: GivenSettings, responses: GivenStore
) -> Answer:
    body = await read_json(request, wire.ResponsesRequest, settings.max_body)
    await inline_images(body.input, settings)
    messages = [
        *_previous(responses, body.previous_response_id),
        *await aside(lambda: dialect.read_input(body.input)),
    ]
    chat = await aside(lambda: dialect.read_chat(body, messages))

    def made(spec: ModelSpec) -> Answer:
        job = GenerationJob(
            spec, [prepared(dialect.generation(body, chat, spec, settings.unsupported_tools), settings)]
        )
        answer = ResponseAnswer(body, _keeper(responses, messages))
        if body.stream:
            framing = Framing(EVENT_STREAM, lambda results: _named(answer.failed(results.message)))
            return LiveStream(stream(pool, job, answer, _named), framing)
        return LiveObject(whole(pool, job, lambda results, _: answer.whole(results)))

    return await served(registry, required(body.model), made)


@get("/v1/responses/{name:str}", opt=route_opt("openai", "passed"))
async def retrieve(name: FromPath[str], responses: GivenStore) -> Answer:
    return Complete(_stored(responses, name).body, content_type=JSON_TYPE)


@delete("/v1/responses/{name:str}", status_code=200, opt=route_opt("openai", "passed"))
async def remove(name: FromPath[str], responses: GivenStore) -> Answer:
    _stored(responses, name)
    responses.remove(name)
    return as_json(wire.Deleted(id=name))


def _previous(responses: ResponsesStore, name: str) -> Sequence[Message]:
    if not name:
        return ()
    stored = responses.get(name)
    if stored is None:
        raise HTTPError(
            400,
            f"Previous response with id '{name}' not found.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    return stored.messages


def _stored(responses: ResponsesStore, name: str) -> StoredResponse:
    stored = responses.get(name)
    if stored is None:
        raise HTTPError(404, f"Response with id '{name}' not found.")
    return stored


def _keeper(responses: ResponsesStore, messages: Sequence[Message]) -> Keep:
    def keep(response: wire.Response, turn: Message) -> None:
        if response.store:
            responses.put(response.id, StoredResponse(encode(response), (*messages, turn)))

    return keep


def _named(item: StreamEvent) -> bytes:
    return event(item, item["type"])


HANDLERS = (create, retrieve, remove)
