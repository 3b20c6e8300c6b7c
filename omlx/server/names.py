"""Finding the model a request names, with each route's own words when it cannot be found."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any

from omlx_registry import ModelSpec, NotFound, Registry, parse_name

from omlx.protocols.http_error import HTTPError
from omlx.record import current

CLOUD_OFF = "ollama cloud is disabled"

NotFoundText = Callable[[str], str]


def single_quoted(name: str) -> str:
    return f"model '{name}' not found"


def double_quoted(name: str) -> str:
    return f'model "{name}" not found, try pulling it first'


async def find(registry: Registry, name: str, not_found: NotFoundText = single_quoted) -> ModelSpec:
    """The model a request names.

    Raises InvalidName, or HTTPError: 404 in the route's words, 403 for a cloud model; CreateError where it requires a
    newer version.
    """
    current().names(name)
    refuse_cloud(name, "remote model is unavailable")
    try:
        spec = await _resolve(registry, name)
    except NotFound:
        raise HTTPError(404, not_found(name)) from None
    registry.require_version(spec.requires)
    return spec


_LookupKey = tuple[asyncio.AbstractEventLoop, Registry, str]
_running: dict[_LookupKey, asyncio.Task[ModelSpec]] = {}
_next: dict[_LookupKey, asyncio.Task[ModelSpec]] = {}


async def _resolve(registry: Registry, name: str) -> ModelSpec:
    """One lookup of a name at a time: who comes meanwhile shares the next one, which begins after all of them have come
    and so sees what was done before. A burst of requests takes two."""
    key = (asyncio.get_running_loop(), registry, name)
    running = _running.get(key)
    if running is None:
        lookup = _running[key] = _start(_look_up(key, None))
    elif key in _next:
        lookup = _next[key]
    else:
        lookup = _next[key] = _start(_look_up(key, running))
    return await asyncio.shield(lookup)


def _start(work: Coroutine[Any, Any, ModelSpec]) -> asyncio.Task[ModelSpec]:
    # It is not about the request that happens to come first.
    return asyncio.create_task(work, context=contextvars.Context())


async def _look_up(key: _LookupKey, before: asyncio.Task[ModelSpec] | None) -> ModelSpec:
    if before is not None:
        await asyncio.wait([before])
        _running[key] = _next.pop(key)
    _, registry, name = key
    try:
        return await asyncio.to_thread(registry.resolve, name)
    finally:
        if key not in _next:
            del _running[key]


def refuse_cloud(name: str, reason: str) -> None:
    """Models that run on Ollama's servers are not available here. Raises InvalidName, HTTPError(403)."""
    if parse_name(name).is_cloud:
        raise HTTPError(403, f"{CLOUD_OFF}: {reason}")


def required(name: str) -> str:
    """`name`, or HTTPError where none is given."""
    if not name:
        raise HTTPError(400, "model is required")
    return name
