"""oMLX's own routes: health and readiness, and under /api/omlx what Ollama has no route for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from importlib import metadata
from typing import Any, BinaryIO

import msgspec
from litestar import get, post
from litestar.params import FromQuery
from omlx_registry import ImportSpec, Registry

from omlx import __version__
from omlx.messages.selftest import Check, SelfTest, SelfTestRequest, SelfTestResponse
from omlx.pool import Pool
from omlx.protocols.admin import wire as wire
from omlx.protocols.http_error import HTTPError
from omlx.server.body import read_json
from omlx.server.dependencies import GivenPool, GivenRegistry, GivenSettings, HttpRequest
from omlx.server.names import find, required
from omlx.server.route_info import route_opt
from omlx.server.routes.ollama_models import progress
from omlx.server.status import status_of
from omlx.server.stream import Answer, Complete, Framing, LiveStream, as_json

_MOST_HITS = 100
_MOST_CHECKS = 20
_LONGEST_DETAIL = 500
_BLOCK = 4 << 20


@get("/health", opt=route_opt("omlx", needs_key=False))
async def health() -> Answer:
    """The process lives."""
    return as_json({"status": "ok"})


@get("/ready", opt=route_opt("omlx"))
async def ready(pool: GivenPool, settings: GivenSettings) -> Answer:
    """A model can make progress: 503 while a request would be turned away or held back, or a model stands still.

    A server without any loaded model is ready to load one.
    """
    stalled = pool.stalled()
    if pool.waiting >= settings.max_queue:
        status = "busy"
    elif pool.short_of_memory:
        status = "short of memory"
    else:
        status = "stalled" if stalled else "ready"
    body = {
        "status": status,
        "waiting": pool.waiting,
        "models": [
            {"name": model.spec.name, "state": "stalled" if model.spec.name in stalled else model.state}
            for model in pool.loaded()
        ],
    }
    return as_json(body, status=200 if status == "ready" else 503)


@get("/api/omlx/status", opt=route_opt("omlx"))
async def omlx_status(pool: GivenPool, registry: GivenRegistry) -> Answer:
    registered = await asyncio.to_thread(registry.list) if pool.loaded() else []
    return as_json(status_of(pool, registered, pin_warning=await asyncio.to_thread(_pin_warning, pool, registry)))


def _pin_warning(pool: Pool, registry: Registry) -> str:
    return pool.pin_warning(registry.list()) if pool.pinned() else ""


@get("/api/omlx/context", opt=route_opt("omlx"))
async def context(registry: GivenRegistry, pool: GivenPool, model: FromQuery[str] = "") -> Answer:
    """The context a model is served with, and the most there is memory for; the model is not loaded for it."""
    default, most = await pool.contexts(await find(registry, required(model)))
    return as_json(wire.ContextResponse(default, most))


@get("/api/omlx/aliases", opt=route_opt("omlx"))
async def aliases(registry: GivenRegistry) -> Answer:
    return as_json(wire.AliasResponse(await asyncio.to_thread(registry.aliases.all)))


@post("/api/omlx/aliases", status_code=200, opt=route_opt("omlx"))
async def set_alias(request: HttpRequest, registry: GivenRegistry, settings: GivenSettings) -> Answer:
    body = await read_json(request, wire.AliasRequest, settings.max_body)
    if body.target:
        await asyncio.to_thread(registry.aliases.set, body.name, body.target)
    else:
        await asyncio.to_thread(registry.aliases.remove, body.name)
    return Complete()


@get("/api/omlx/search", opt=route_opt("omlx"))
async def search(registry: GivenRegistry, q: FromQuery[str] = "", limit: FromQuery[int] = 20) -> Answer:
    if not q.strip():
        raise HTTPError(400, "say what to search for: /api/omlx/search?q=TEXT")
    repositories = await registry.search(q.strip(), max(1, min(limit, _MOST_HITS)))
    hits = [wire.SearchHit(model.repository, model.downloads, model.size) for model in repositories]
    return as_json(wire.SearchResponse(hits))


@get("/api/omlx/importable", opt=route_opt("omlx"))
async def importable(registry: GivenRegistry) -> Answer:
    """Whether an Ollama has models on this machine that `POST /api/omlx/import` can take."""
    count, size = await asyncio.to_thread(registry.imports.count_ollama)
    return as_json(wire.ImportableResponse(count, size))


@get("/api/omlx/outdated", opt=route_opt("omlx"))
async def outdated(registry: GivenRegistry) -> Answer:
    """Which pulled models have a newer revision on the Hub; it is asked once for each repository."""
    models = [
        wire.PulledState(it.name, it.repository, it.revision, it.commit, it.latest, it.outdated, it.error)
        for it in await registry.outdated()
    ]
    return as_json(wire.OutdatedResponse(models))


@post("/api/omlx/import", status_code=200, opt=route_opt("omlx", "each"))
async def import_found(request: HttpRequest, registry: GivenRegistry, settings: GivenSettings) -> Answer:
    body = await read_json(request, wire.ImportRequest, settings.max_body)
    if body.source not in ("huggingface", "ollama"):
        raise HTTPError(400, "source must be huggingface or ollama")
    if body.source != "ollama":
        return progress(registry.imports.import_found(), stream=True)
    if body.prefer not in ("convert", "pull"):
        raise HTTPError(400, "prefer must be convert or pull")
    wanted = ImportSpec(
        models=body.models,
        link=body.link,
        pull=body.prefer == "pull",
        dry_run=body.dry_run,
        verbose=body.verbose,
    )
    return progress(registry.imports.import_ollama(wanted, body.folder), stream=True)


@get("/api/omlx/export", opt=route_opt("omlx"))
async def export(registry: GivenRegistry, model: FromQuery[str] = "") -> Answer:
    """What a folder needs to be this model without oMLX."""
    spec = await find(registry, required(model))
    modelfile, files = await asyncio.to_thread(registry.export, spec.full_name)
    return as_json(
        wire.ExportResponse(modelfile, [wire.ExportedFile(file.path, file.size, file.digest) for file in files])
    )


@get("/api/omlx/export/file", opt=route_opt("omlx"))
async def export_file(registry: GivenRegistry, model: FromQuery[str] = "", path: FromQuery[str] = "") -> Answer:
    spec = await find(registry, required(model))
    file = await asyncio.to_thread(registry.open_file, spec.full_name, path)
    return LiveStream(_blocks(file), Framing(b"application/octet-stream", lambda _: b""))


async def _blocks(file: BinaryIO) -> AsyncIterator[bytes]:
    """A file piece by piece. Who reads it knows its size and digest: an error just ends it."""
    with file:
        while block := await asyncio.to_thread(file.read, _BLOCK):
            yield block


@post("/api/omlx/pin", status_code=200, opt=route_opt("omlx", "each"))
async def pin(request: HttpRequest, registry: GivenRegistry, pool: GivenPool, settings: GivenSettings) -> Answer:
    body = await read_json(request, wire.PinRequest, settings.max_body)
    spec = await asyncio.to_thread(registry.resolve, body.model)
    pool.pin(spec, body.pinned)
    return as_json(wire.PinResponse(await asyncio.to_thread(_pin_warning, pool, registry) if body.pinned else ""))


@post("/api/omlx/selftest", status_code=200, opt=route_opt("omlx"))
async def selftest(request: HttpRequest, registry: GivenRegistry, pool: GivenPool, settings: GivenSettings) -> Answer:
    """Keep what a self-test found of a model, by its digest."""
    body = await read_json(request, SelfTestRequest, settings.max_body)
    spec = await find(registry, required(body.model))
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    versions = f"omlx {__version__}, mlx {metadata.version('mlx')}"
    checks = _checks(body.checks)
    result = SelfTest(at=now, versions=versions, checks=checks) if checks else None
    before = pool.selftest(spec.digest)
    await pool.keep_selftest(spec, result)
    off = list(result.off) if result else []
    return as_json(SelfTestResponse(model=spec.name, digest=spec.digest, off=off, result=result, before=before))


def _checks(items: list[Any]) -> list[Check]:
    try:
        checks = msgspec.convert(items[:_MOST_CHECKS], list[Check])
    except msgspec.ValidationError as error:
        raise HTTPError(400, f"checks: {error}") from None
    # A caller's sentence goes to other users' terminals: one line of bounded length.
    return [Check(_one_line(check.name), check.outcome, _one_line(check.detail)) for check in checks]


def _one_line(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text[:_LONGEST_DETAIL])


@post("/api/omlx/prune", status_code=200, opt=route_opt("omlx"))
async def prune(request: HttpRequest, registry: GivenRegistry, settings: GivenSettings) -> Answer:
    body = await read_json(request, wire.PruneRequest, settings.max_body)
    report = await asyncio.to_thread(lambda: registry.prune(now=body.now, partial=body.partial, dry_run=body.dry_run))
    return as_json(wire.PruneResponse(report.removed, report.freed, report.busy))


@post("/api/omlx/verify", status_code=200, opt=route_opt("omlx"))
async def verify(request: HttpRequest, registry: GivenRegistry, settings: GivenSettings) -> Answer:
    body = await read_json(request, wire.VerifyRequest, settings.max_body)
    report = await asyncio.to_thread(lambda: registry.verify(repair=body.repair))
    damaged = [wire.DamagedBlob(damage.digest, damage.reason, damage.models) for damage in report.damaged]
    return as_json(wire.VerifyResponse(report.checked, report.bytes, damaged, report.repaired))
