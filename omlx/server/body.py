"""Reading a request's body: bounded in size, decompressed, blind to Content-Type, decoded by Go's rules."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypeVar

from litestar import Request

from omlx.api import gojson
from omlx.api.wished import Wished
from omlx.dialect.refusal import Refusal
from omlx.record import current
from omlx.server.errors import ClientGone
from omlx.server.inflate import inflate
from omlx.server.wishes import WishError, read_priority
from omlx.settings import Settings
from omlx.units import human_bytes

_T = TypeVar("_T")
_LARGE = 1 << 20
"""Bytes. Reading a larger body takes long enough for every open stream to feel it."""
_MOST_VALUES = 2_000_000
"""Values separated by commas. Pictures are long texts; small objects take a hundred times the room that they have on
the wire, and a context of a million tokens is a million values."""


async def read_json(request: Request[Any, Any, Any], kind: type[_T], limit: int) -> _T:
    """The body as wire struct `kind`. Raises Malformed, or Refusal: 413 past `limit` bytes, 400 for no such class."""
    body = await read_bytes(request, limit)
    encoding = request.headers.get("content-encoding", "")
    if encoding:
        body = await inflate(body, encoding, limit)
    asked = gojson.decode(body, kind) if len(body) < _LARGE else await asyncio.to_thread(_decode_large, body, kind)
    if isinstance(asked, Wished) and isinstance(asked.priority, str):
        _note_priority(asked.priority)
    return asked


def _decode_large(body: bytes, kind: type[_T]) -> _T:
    """`gojson.decode` of a body that is mostly long texts. Refusal where it is made of more values than any request."""
    if body.count(b",") >= _MOST_VALUES:
        raise Refusal(413, f"the request body holds more than {_MOST_VALUES:,} values")
    return gojson.decode(body, kind)


def _note_priority(text: str) -> None:
    """The body's class counts where no header gives one. Raises Refusal."""
    try:
        priority = read_priority(text, "priority")
    except WishError as error:
        raise Refusal(400, str(error)) from None
    current().priority = current().priority or priority


async def read_bytes(request: Request[Any, Any, Any], limit: int) -> bytes:
    """The whole body, at most `limit` bytes."""
    parts = [part async for part in chunks(request, limit)]
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def chunks(request: Request[Any, Any, Any], limit: int) -> AsyncIterator[bytes]:
    """The body piece by piece, never more than `limit` bytes in all (0: no limit)."""
    announced = request.headers.get("content-length", "")
    if limit and announced.isdigit() and int(announced) > limit:
        raise _too_large(limit)
    size = 0
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part: bytes = message.get("body", b"")  # type: ignore[assignment]
        size += len(part)
        if limit and size > limit:
            raise _too_large(limit)
        if part:
            yield part
        if not message.get("more_body", False):
            return


async def inline_images(content: Any, settings: Settings) -> None:
    """Put the images that `content` names by URL in place of the URLs; not unless the setting allows it: the dialect
    then refuses them. Raises Refusal."""
    if settings.allow_image_urls:
        from omlx.server.image_urls import ImageFetcher  # its HTTP client takes a third of the start

        await ImageFetcher().inline(content)


def _too_large(limit: int) -> Refusal:
    return Refusal(413, f"the request body is larger than {human_bytes(limit)}; raise the setting max_body to allow it")
