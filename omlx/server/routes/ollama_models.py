"""Changing the store: copy, delete, pull, push, create, blobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec
from litestar import HttpMethod, delete, post, route
from litestar.params import FromPath
from omlx_registry import CreateSpec, DigestMismatch, Info, InvalidName, NotFound, Progress, Registry, parse_name

from omlx.pool import Pool
from omlx.protocols.http_error import HTTPError
from omlx.protocols.ollama import models as models_wire
from omlx.server.body import aside, chunks, read_json
from omlx.server.dependencies import GivenPool, GivenRegistry, GivenSettings, GivenTelemetry, HttpRequest
from omlx.server.names import refuse_cloud, required, single_quoted
from omlx.server.route_info import route_opt
from omlx.server.stream import Answer, Complete, LiveObject, LiveStream, encode, line

_T = TypeVar("_T")
_BLOCK = 4 << 20
"""Bytes of an upload that are hashed and written at once, off the event loop."""


@post("/api/copy", status_code=200, opt=route_opt("ollama", "each"))
async def copy(request: HttpRequest, registry: GivenRegistry, pool: GivenPool, settings: GivenSettings) -> Answer:
    body = await read_json(request, models_wire.CopyRequest, settings.max_body)
    for field, name in (("source", body.source), ("destination", body.destination)):
        try:
            parse_name(name)
        except InvalidName:
            raise HTTPError(400, f'{field} "{name}" is invalid') from None
    try:
        await asyncio.to_thread(registry.copy, body.source, body.destination)
    except NotFound:
        raise HTTPError(404, f'model "{body.source}" not found') from None
    await _names_changed(registry, pool)
    return Complete()


@delete("/api/delete", status_code=200, opt=route_opt("ollama", "each"))
async def remove(request: HttpRequest, registry: GivenRegistry, pool: GivenPool, settings: GivenSettings) -> Answer:
    body = await read_json(request, models_wire.DeleteRequest, settings.max_body)
    name = required(body.wanted)
    try:
        freed = await asyncio.to_thread(registry.delete, name)
    except InvalidName:
        raise HTTPError(400, f'name "{name}" is invalid') from None
    except NotFound:
        raise HTTPError(404, single_quoted(name)) from None
    await _names_changed(registry, pool)
    return Complete(headers=(("X-Omlx-Freed", str(freed)),))


async def _names_changed(registry: Registry, pool: Pool) -> None:
    """Have the models in memory listed under names that exist; see `Pool.rename`."""
    await pool.rename(await asyncio.to_thread(registry.list))


async def replacing(steps: AsyncGenerator[Progress], registry: Registry, pool: Pool) -> AsyncGenerator[Progress]:
    """`steps` that make a model. What had its name before is unloaded when the last one, the success, is told."""
    async with aclosing(steps):
        async for step in steps:
            if step.status == "success":
                await _names_changed(registry, pool)
            yield step


@post("/api/pull", status_code=200, opt=route_opt("ollama", "each"))
async def pull(
    request: HttpRequest,
    registry: GivenRegistry,
    pool: GivenPool,
    settings: GivenSettings,
    telemetry: GivenTelemetry,
) -> Answer:
    body = await read_json(request, models_wire.PullRequest, settings.max_body)
    refuse_cloud(body.wanted, "remote model is unavailable")
    pulled = replacing(registry.pull(body.wanted, revision=body.revision, insecure=body.insecure), registry, pool)
    steps = telemetry.pulls.follow(body.wanted, pulled)
    return progress(steps, stream=body.stream)


@post("/api/push", status_code=200, opt=route_opt("ollama", "each"))
async def push(request: HttpRequest, registry: GivenRegistry, settings: GivenSettings) -> Answer:
    body = await read_json(request, models_wire.PushRequest, settings.max_body)
    name = required(body.wanted)
    parse_name(name)
    return progress(registry.push(name), stream=body.stream)


@post("/api/create", status_code=200, opt=route_opt("ollama", "each", body="texts"))
async def create(request: HttpRequest, registry: GivenRegistry, pool: GivenPool, settings: GivenSettings) -> Answer:
    body = await read_json(request, models_wire.CreateRequest, settings.max_body)
    parse_name(body.wanted)
    return progress(
        replacing(registry.create(await aside(lambda: _to_create(body))), registry, pool), stream=body.stream
    )


def _to_create(body: models_wire.CreateRequest) -> CreateSpec:
    return CreateSpec(
        model=body.wanted,
        source=body.from_,
        files=body.files,
        adapters=body.adapters,
        draft=body.draft,
        draft_files=body.draft_files,
        template=body.template,
        system=body.system,
        renderer=body.renderer,
        parser=body.parser,
        requires=body.requires,
        license=body.license,
        parameters=body.parameters,
        messages=[{"role": message.role, "content": message.content} for message in body.messages],
        quantize=body.quantize or body.quantization,
        draft_quantize=body.draft_quantize,
        remote_host=body.remote_host,
        info=Info(**msgspec.structs.asdict(body.info)),
    )


@route("/api/blobs/{digest:str}", http_method=[HttpMethod.HEAD], status_code=200, opt=route_opt("ollama", "each"))
async def has_blob(digest: FromPath[str], registry: GivenRegistry) -> Answer:
    return Complete(status=200 if await asyncio.to_thread(registry.has_blob, digest) else 404)


@post("/api/blobs/{digest:str}", status_code=201, opt=route_opt("ollama", "each"))
async def put_blob(request: HttpRequest, digest: FromPath[str], registry: GivenRegistry) -> Answer:
    if await asyncio.to_thread(registry.has_blob, digest):
        return Complete(status=200)
    try:
        await _store(registry, digest, request)
    except DigestMismatch as error:
        raise HTTPError(400, error.message) from None
    return Complete(status=201)


async def _store(registry: Registry, digest: str, request: HttpRequest) -> None:
    """Write the body to disk as it arrives; nothing is left of one that ends early or has another digest."""
    blob = registry.blob_writer(digest)
    try:
        writer = await _in_thread(blob.__enter__)
        async for block in _blocks(chunks(request, 0)):
            await _in_thread(writer.write, block)
    except BaseException as error:
        await _in_thread(blob.__exit__, type(error), error, error.__traceback__)
        raise
    await _in_thread(blob.__exit__, None, None, None)


async def _in_thread(work: Callable[..., _T], *arguments: Any) -> _T:
    """`work` beside the event loop. A caller that is cancelled waits for its end: a file has one user at a time."""
    job = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    try:
        return await asyncio.shield(job)
    except asyncio.CancelledError:
        await asyncio.wait([job])
        raise


async def _blocks(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    block = bytearray()
    async for part in parts:
        block += part
        if len(block) >= _BLOCK:
            yield bytes(block)
            block.clear()
    yield bytes(block)


def progress(steps: AsyncGenerator[Progress], *, stream: bool) -> Answer:
    """Ollama's status lines; without `stream` only the last one, or the error with its status."""
    if stream:
        return LiveStream(_lines(steps))
    return LiveObject(_last(steps), content_type="application/json")


async def _lines(steps: AsyncGenerator[Progress]) -> AsyncIterator[bytes]:
    async with aclosing(steps):
        async for step in steps:
            yield line(step)


async def _last(steps: AsyncGenerator[Progress]) -> bytes:
    last = Progress("success")
    async with aclosing(steps):
        async for step in steps:
            last = step
    return encode(last)
