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
    asked = await read_json(request, wire.ResponsesRequest, settings.max_body)
    await inline_images(asked.input, settings)
    messages = [
        *_previous(responses, asked.previous_response_id),
        *await aside(lambda: dialect.read_input(asked.input)),
    ]
    chat = await aside(lambda: dialect.read_chat(asked, messages))

    def made(spec: ModelSpec) -> Answer:
        job = GenerationJob(
            spec, [prepared(dialect.generation(asked, chat, spec, settings.unsupported_tools), settings)]
        )
        answer = ResponseAnswer(asked, _keeper(responses, messages))
        if asked.stream:
            framing = Framing(EVENT_STREAM, lambda found: _named(answer.failed(found.message)))
            return LiveStream(stream(pool, job, answer, _named), framing)
        return LiveObject(whole(pool, job, lambda found, _: answer.whole(found)))

    return await served(registry, required(asked.model), made)


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
    found = responses.get(name)
    if found is None:
        raise HTTPError(
            400,
            f"Previous response with id '{name}' not found.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    return found.messages


def _stored(responses: ResponsesStore, name: str) -> StoredResponse:
    found = responses.get(name)
    if found is None:
        raise HTTPError(404, f"Response with id '{name}' not found.")
    return found


def _keeper(responses: ResponsesStore, messages: Sequence[Message]) -> Keep:
    def keep(response: wire.Response, turn: Message) -> None:
        if response.store:
            responses.put(response.id, StoredResponse(encode(response), (*messages, turn)))

    return keep


def _named(said: StreamEvent) -> bytes:
    return event(said, said["type"])


HANDLERS = (create, retrieve, remove)
