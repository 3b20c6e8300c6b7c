"""/metrics, the dashboard's files, and what it asks for under /api/omlx: overview, history, requests, events, pulls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress

import msgspec
from litestar import delete, get, post
from litestar.params import FromPath

from omlx.protocols.admin import overview as wire
from omlx.protocols.http_error import HTTPError
from omlx.server import dashboard
from omlx.server.body import read_json
from omlx.server.dependencies import GivenPool, GivenRegistry, GivenSettings, GivenTelemetry, HttpRequest
from omlx.server.errors import Problem, native_error
from omlx.server.names import refuse_cloud, required
from omlx.server.route_info import route_opt
from omlx.server.routes.ollama_models import replacing
from omlx.server.stream import EVENT_STREAM, Answer, Complete, Framing, LiveStream, as_json, event
from omlx.server.telemetry import Telemetry

_EVENTS_EVERY_S = 1.0
"""While something runs, waits, loads, leaves or is pulled; at other times only news is told: samples at the least."""
_TOGETHER_S = 0.15
"""From news to the look at it, for what follows from it to be seen, too."""
_SIGN_OF_LIFE_S = 15.0
_MOST_WATCHERS = 32
_UNCACHED = (("cache-control", "no-store"),)


def _broken(problem: Problem) -> bytes:
    return b"event: error\ndata: " + msgspec.json.encode(native_error(problem)) + b"\n\n"


_EVENTS = Framing(EVENT_STREAM, _broken, ((b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")))


@get("/metrics", opt=route_opt("omlx"))
async def metrics(request: HttpRequest, telemetry: GivenTelemetry) -> Answer:
    text, content_type = await telemetry.text(request.headers.get("accept", ""))
    return Complete(text, content_type=content_type)


@get("/dashboard/{name:str}", opt=route_opt("omlx", needs_key=False))
async def file(request: HttpRequest, name: FromPath[str]) -> Answer:
    answer = dashboard.file(name, request.headers.get("if-none-match", ""))
    if answer is None:
        raise HTTPError(404, f"the dashboard has no file {name}")
    return answer


@get("/api/omlx/overview", opt=route_opt("omlx"))
async def overview(telemetry: GivenTelemetry) -> Answer:
    return as_json(telemetry.overview(), headers=_UNCACHED)


@get("/api/omlx/history", opt=route_opt("omlx"))
async def history(telemetry: GivenTelemetry) -> Answer:
    return as_json(telemetry.history(), headers=_UNCACHED)


@get("/api/omlx/requests", opt=route_opt("omlx"))
async def requests(telemetry: GivenTelemetry) -> Answer:
    return as_json(wire.RequestList(telemetry.journal.rows()), headers=_UNCACHED)


@get("/api/omlx/events", opt=route_opt("omlx"))
async def events(telemetry: GivenTelemetry) -> Answer:
    """A stream of server-sent events: `overview` whenever it changed, `sample`, and the `requests` that are news."""
    if telemetry.watchers >= _MOST_WATCHERS:
        raise HTTPError(503, f"{_MOST_WATCHERS} dashboards are watching already")
    return LiveStream(_watch(telemetry), _EVENTS)


async def _watch(telemetry: Telemetry) -> AsyncIterator[bytes]:
    telemetry.watchers += 1
    try:
        sent, shown, ended, spoke = b"", b"", 0.0, time.monotonic()
        drawn = None
        while not telemetry.closing.is_set():
            news = telemetry.news  # taken before the look: nothing is missed
            chunk = b""
            now = telemetry.overview()
            # The clock alone is no news.
            current = msgspec.json.encode(msgspec.structs.replace(now, uptime=0.0))
            if current != sent:
                sent, chunk = current, event(now, "overview")
            body = time.monotonic()
            rows = telemetry.journal.rows(newer_than=ended)
            ended = body
            listed = msgspec.json.encode(rows)
            if rows and listed != shown:
                chunk += event(wire.RequestList(rows), "requests")
            shown = listed
            drawn, before = telemetry.latest(), drawn
            if drawn is not None and drawn != before:
                chunk += event(drawn, "sample")
            if chunk or time.monotonic() - spoke > _SIGN_OF_LIFE_S:
                spoke = time.monotonic()
                yield chunk or b": still here\n\n"
            if _moves(now, rows):
                await _wait(telemetry.closing, _EVENTS_EVERY_S)
            else:
                await _wait(news, _SIGN_OF_LIFE_S)
                await _wait(telemetry.closing, _TOGETHER_S)
    finally:
        telemetry.watchers -= 1


async def _wait(event: asyncio.Event, most_s: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(most_s):
            await event.wait()


def _moves(now: wire.Overview, rows: list[wire.RequestRow]) -> bool:
    """Something goes on, and tells nobody of each step."""
    return bool(
        now.running
        or now.waiting
        or any(row.stage != "done" for row in rows)
        or any(model.state != "ready" for model in now.models)
        or any(pull.state == "running" for pull in now.pulls)
    )


@post("/api/omlx/pulls", status_code=200, opt=route_opt("omlx"))
async def start_pull(
    request: HttpRequest,
    registry: GivenRegistry,
    pool: GivenPool,
    telemetry: GivenTelemetry,
    settings: GivenSettings,
) -> Answer:
    body = await read_json(request, wire.PullStart, settings.max_body)
    name = required(body.model.strip())
    refuse_cloud(name, "remote model is unavailable")
    return as_json(wire.PullStarted(telemetry.pulls.start(name, replacing(registry.pull(name), registry, pool))))


@delete("/api/omlx/pulls/{number:int}", status_code=200, opt=route_opt("omlx"))
async def cancel_pull(number: FromPath[int], telemetry: GivenTelemetry) -> Answer:
    if not telemetry.pulls.cancel(number):
        raise HTTPError(404, f"there is no pull {number}")
    return Complete()


HANDLERS = (metrics, file, overview, history, requests, events, start_pull, cancel_pull)
