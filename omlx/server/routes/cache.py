"""The KV store: what it holds, why a prompt missed, and named conversations. /api/omlx/cache.

What concerns the folder on disk is answered from the folder, whether a model is loaded or not; the rest is asked of
the model's runner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
from litestar import get, post
from omlx_cache import maintenance as operate
from omlx_registry import ModelSpec, Registry, parse_name

from omlx.messages.request import Finish, GenerateRequest, Message
from omlx.pool import Pool
from omlx.pool.admission import cold_bytes
from omlx.pool.lease import Lease
from omlx.protocols.admin import cache as wire
from omlx.protocols.http_error import HTTPError
from omlx.record import current
from omlx.server.body import read_json
from omlx.server.dependencies import GivenPool, GivenRegistry, GivenSettings, HttpRequest
from omlx.server.generation import with_headers
from omlx.server.names import required, single_quoted
from omlx.server.resolve_model import served
from omlx.server.route_info import route_opt
from omlx.server.stream import Answer, Complete, LiveObject, as_json, encode
from omlx.settings import Settings

T = TypeVar("T")
_LONGEST_NAME = 200


@get("/api/omlx/cache", opt=route_opt("omlx"))
async def stats(pool: GivenPool) -> Answer:
    ready = [model.spec for model in pool.loaded() if model.state == "ready"]
    replies = [(spec, await pool.cache(spec.digest, "stats")) for spec in ready]
    return as_json(wire.CacheResponse([_stats(spec, body) for spec, body in replies if body is not None]))


def _stats(spec: ModelSpec, body: dict[str, Any]) -> wire.CacheStats:
    return msgspec.convert({**body, "model": spec.name}, wire.CacheStats)


@get("/api/omlx/cache/folder", opt=route_opt("omlx"))
async def folder(registry: GivenRegistry, settings: GivenSettings) -> Answer:
    contents = await _in_folder(settings, operate.show)
    registered = await asyncio.to_thread(registry.list)
    path, most = settings.paged_ssd_cache_dir, cold_bytes(settings)
    models = [msgspec.to_builtins(use) | {"names": _names_of(use, registered)} for use in contents.models]
    shown = msgspec.to_builtins(contents) | {"path": path, "max_bytes": most, "models": models}
    return as_json(msgspec.convert(shown, wire.CacheFolder))


def _names_of(use: operate.ModelUse, registered: Sequence[ModelSpec]) -> list[str]:
    """All models that use these records: those with the same weights. Empty where all of them were removed."""
    # What follows the fingerprint of the weights says how they are held.
    weights = use.fingerprint.partition(" ")[0]
    weights = weights or next((spec.fingerprint for spec in registered if spec.name == use.name), "")
    return sorted(spec.name for spec in registered if spec.fingerprint == weights)


async def _in_folder(settings: Settings, do: Callable[[Path], T]) -> T:
    try:
        return await asyncio.to_thread(do, Path(settings.paged_ssd_cache_dir))
    except operate.FolderError as error:
        raise HTTPError(500, str(error)) from None


@post("/api/omlx/cache/clear", status_code=200, opt=route_opt("omlx"))
async def clear(request: HttpRequest, registry: GivenRegistry, pool: GivenPool, settings: GivenSettings) -> Answer:
    body = await read_json(request, wire.CacheClearRequest, settings.max_body)
    chosen = await _chosen(registry, settings, body.model) if body.model else None
    # First in the runners, which hold records in RAM and would write them.
    loaded = [model.spec for model in pool.loaded() if model.state == "ready"]
    cleared = 0
    for spec in loaded:
        if chosen is None or spec.name in chosen.names:
            cleared += (await pool.cache(spec.digest, "clear") or {}).get("records", 0)
    spaces = chosen.namespaces if chosen is not None else None
    cleared += await _in_folder(settings, lambda path: operate.clear(path, spaces))
    return as_json(wire.CacheCleared(cleared, chosen.names if chosen is not None else []))


class _Chosen(NamedTuple):
    """What a name stands for: its records in the folder, and all models that use them."""

    namespaces: list[str]
    names: list[str]


async def _chosen(registry: Registry, settings: Settings, name: str) -> _Chosen:
    """Models with the same weights share records; a model that was removed can still have some. Raises HTTPError."""
    known = (await _in_folder(settings, operate.show)).models
    registered = await asyncio.to_thread(registry.list)
    wanted = parse_name(name).short
    spec = next((spec for spec in registered if spec.name.lower() == wanted.lower()), None)
    if spec is None:
        left = [use for use in known if use.name == wanted]
        if not left:
            raise HTTPError(404, single_quoted(name))
        return _Chosen([use.namespace for use in left], [wanted])
    names = sorted(other.name for other in registered if other.fingerprint == spec.fingerprint)
    used = [use.namespace for use in known if use.name in names or spec.name in _names_of(use, registered)]
    return _Chosen(used, names)


@post("/api/omlx/cache/verify", status_code=200, opt=route_opt("omlx"))
async def verify(settings: GivenSettings) -> Answer:
    report = await _in_folder(settings, operate.verify)
    return as_json(msgspec.convert(msgspec.to_builtins(report), wire.CacheVerified))


@post("/api/omlx/cache/explain", status_code=200, opt=route_opt("omlx", body="texts"))
async def explain(request: HttpRequest, registry: GivenRegistry, pool: GivenPool, settings: GivenSettings) -> Answer:
    body = await read_json(request, wire.CacheExplainRequest, settings.max_body)
    return await served(registry, body.model, lambda spec: LiveObject(_explain(pool, spec, body)))


async def _explain(pool: Pool, spec: ModelSpec, body: wire.CacheExplainRequest) -> bytes:
    async with await pool.acquire(spec) as lease:
        text = await _prompt(lease, spec, body.prompt, raw=body.raw)
        reply = await lease.cache("explain", text)
        if "error" in reply:
            raise HTTPError(400, reply["error"])
        return encode(msgspec.convert(reply, wire.CacheExplanation))


async def _prompt(lease: Lease, spec: ModelSpec, prompt: str, *, raw: bool) -> str:
    """A user's message as the model would read it."""
    if raw or not prompt:
        return prompt
    messages = [Message("user", prompt)]
    if spec.system:
        messages.insert(0, Message("system", spec.system))
    rendered = ""
    request = with_headers(GenerateRequest(id=0, messages=messages, render_only=True), current())
    async for event in lease.generate(request):
        if isinstance(event, Finish):
            rendered = event.rendered or ""
    return rendered


@post("/api/omlx/cache/save", status_code=200, opt=route_opt("omlx", body="texts"))
async def save(request: HttpRequest, registry: GivenRegistry, pool: GivenPool, settings: GivenSettings) -> Answer:
    body = await read_json(request, wire.CacheSaveRequest, settings.max_body)
    name = _session_name(body.name)
    return await served(registry, required(body.model), lambda spec: LiveObject(_save(pool, spec, body, name)))


async def _save(pool: Pool, spec: ModelSpec, body: wire.CacheSaveRequest, name: str) -> bytes:
    async with await pool.acquire(spec) as lease:
        text = await _prompt(lease, spec, body.prompt, raw=body.raw)
        return encode(wire.CacheSaved(_done(await lease.cache("save", text, session=name))["tokens"]))


@post("/api/omlx/cache/load", status_code=200, opt=route_opt("omlx"))
async def load(request: HttpRequest, registry: GivenRegistry, pool: GivenPool, settings: GivenSettings) -> Answer:
    body = await read_json(request, wire.CacheSessionRequest, settings.max_body)
    name = _session_name(body.name)
    sessions = (await _in_folder(settings, operate.show)).sessions
    model = next((session.model for session in sessions if session.name == name), None)
    if model is None:
        raise _no_session(name)
    return await served(registry, model, lambda spec: LiveObject(_load(pool, spec, name)))


async def _load(pool: Pool, spec: ModelSpec, name: str) -> bytes:
    async with await pool.acquire(spec) as lease:
        return encode(wire.CacheLoaded(spec.name, _done(await lease.cache("load", session=name))["bytes"]))


@post("/api/omlx/cache/rm", status_code=200, opt=route_opt("omlx"))
async def remove(request: HttpRequest, settings: GivenSettings) -> Answer:
    body = await read_json(request, wire.CacheSessionRequest, settings.max_body)
    name = _session_name(body.name)
    if not await _in_folder(settings, lambda path: operate.remove_session(path, name)):
        raise _no_session(name)
    return Complete()


def _session_name(name: str) -> str:
    if not name.strip() or len(name) > _LONGEST_NAME or not name.isprintable():
        raise HTTPError(400, f"a session needs a name of at most {_LONGEST_NAME} printable characters")
    return name


def _no_session(name: str) -> HTTPError:
    return HTTPError(404, f"there is no session '{name}': omlx cache ls lists them")


def _done(answer: dict[str, Any]) -> dict[str, Any]:
    """A runner's answer, or HTTPError where it says that it could not."""
    if not answer["enabled"]:
        raise HTTPError(400, "the cache is switched off")
    if "error" in answer:
        raise HTTPError(400, answer["error"])
    return answer


HANDLERS = (stats, folder, clear, verify, explain, save, load, remove)
