"""Finding the model a request names, with each route's own words when it cannot be found."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from omlx_registry import ModelSpec, NotFound, Registry, parse_name

from omlx.protocols.http_error import HTTPError
from omlx.record import current

CLOUD_OFF = "ollama cloud is disabled"

LONGEST_SHOWN = 200
"""Characters of a name, in the dashboard."""

NotFoundText = Callable[[str], str]


def single_quoted(name: str) -> str:
    return f"model '{name}' not found"


def double_quoted(name: str) -> str:
    return f'model "{name}" not found, try pulling it first'


async def find(registry: Registry, name: str, said: NotFoundText = single_quoted) -> ModelSpec:
    """The model a request names. Raises InvalidName, or HTTPError: 404 in the route's words, 403 for a cloud model;
    CreateError where it requires a newer version.
    """
    current().named = name[:LONGEST_SHOWN]
    refuse_cloud(name, "remote model is unavailable")
    try:
        spec = await asyncio.to_thread(registry.resolve, name)
    except NotFound:
        raise HTTPError(404, said(name)) from None
    registry.require_version(spec.requires)
    return spec


def refuse_cloud(name: str, reason: str) -> None:
    """Models that run on Ollama's servers are not available here. Raises InvalidName, HTTPError(403)."""
    if parse_name(name).is_cloud:
        raise HTTPError(403, f"{CLOUD_OFF}: {reason}")


def required(name: str) -> str:
    """`name`, or HTTPError where none is given."""
    if not name:
        raise HTTPError(400, "model is required")
    return name
