"""Reading a request's body: bounded in size, decompressed, blind to Content-Type, decoded by Go's rules."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from typing import Any, TypeVar

from litestar import Request

from omlx.protocols.common import CommonFields
from omlx.protocols.http_error import HTTPError
from omlx.protocols.ollama import gojson
from omlx.record import current
from omlx.server.body_counts import tally
from omlx.server.body_memory import SMALL, BodyReservation
from omlx.server.errors import ClientGone
from omlx.server.inflate import inflate, room_for, too_large
from omlx.server.large_json import LARGE, Readers, ReadValue, check_counts
from omlx.server.request_headers import RequestHeaderError, read_priority
from omlx.server.route_info import body_limit
from omlx.settings import Settings

_T = TypeVar("_T")
_VALUE_BYTES = 100
"""What a value costs in memory, more or less."""
_SLOWEST = 100_000
"""Bytes a second. Who sends a large body more slowly than this keeps others waiting for its memory."""
_many: ContextVar[bool] = ContextVar("omlx.many_values", default=False)
"""Whether the body of the present request holds many values, or one that takes long to read."""
_readers = Readers()
_GRACE_S = 30.0
_LOOK_S = 2.0


async def read_json(request: Request[Any, Any, Any], kind: type[_T], max_body: int) -> _T:
    """The body as wire struct `kind`; the route says how much of `max_body` it takes.

    Raises Malformed, or HTTPError: 413 past the limit, 400 for no such priority.
    """
    limit = body_limit(request.route_handler.opt["body"], max_body)
    body = await read_bytes(request, limit)
    encoding = request.headers.get("content-encoding", "")
    reservation = BodyReservation.of(request.scope)
    if encoding:
        body = await inflate(body, encoding, limit, reservation)
    fields = await parse(body, lambda value: gojson.read(_noted(value), kind), reservation)
    if isinstance(fields, CommonFields) and isinstance(fields.priority, str):
        _note_priority(fields.priority)
    return fields


def _noted(value: Any) -> Any:
    """Record the model that the body names, so that later errors are logged with it; returns `value`."""
    if isinstance(value, dict):
        current().names(value.get("model") or value.get("name"))
    return value


async def parse(body: bytes, read: Callable[[Any], _T], reservation: BodyReservation) -> _T:
    """`read` of the first JSON value of `body`.

    A large body, or one of many values, waits for its turn and is decoded in a thread; a very large one in a separate
    process. Raises Malformed; HTTPError 413 if it has too many values or takes too long.
    """
    if len(body) <= SMALL:
        counts = tally(body)
        if not counts.many:
            return read(gojson.first_value(body))
        check_counts(counts)
    async with reservation.parsing(very_large=len(body) > LARGE):
        value, values, many = await asyncio.to_thread(_readers.read if len(body) > LARGE else _first_value, body)
        _many.set(many)
        result = await asyncio.to_thread(read, value)
        if len(body) > SMALL:
            reservation.settle(len(body) + values * _VALUE_BYTES)
    return result


def _first_value(body: bytes) -> ReadValue:
    counts = tally(body)
    check_counts(counts)
    return ReadValue(gojson.first_value(body), counts.values, counts.many)


def takes_long() -> None:
    """Make `aside` run the remaining preparation of the present request in a thread."""
    _many.set(True)


async def aside(work: Callable[[], _T]) -> _T:
    """The result of `work`, run in a thread if the body of this request takes long to handle."""
    return await asyncio.to_thread(work) if _many.get() else work()


def _note_priority(text: str) -> None:
    """The body's class counts where no header gives one. Raises HTTPError."""
    try:
        priority = read_priority(text, "priority")
    except RequestHeaderError as error:
        raise HTTPError(400, str(error)) from None
    current().priority = current().priority or priority


async def read_bytes(request: Request[Any, Any, Any], limit: int) -> bytes:
    """The whole body, at most `limit` bytes. A large one waits for its reservation before it is read on.

    One that does not say its size reserves a modest part first. HTTPError 503: too many of those became large.
    """
    header = request.headers.get("content-length", "")
    announced = int(header) if header.isdigit() else 0
    reservation, parts, size = BodyReservation.of(request.scope), list[bytes](), 0
    arriving = chunks(request, limit)
    if announced > SMALL and (not limit or announced <= limit):
        await reservation.take(_room_for(request, announced, limit))
    began = time.monotonic()
    while part := await _next(arriving, reservation, due=began + _GRACE_S + size / _SLOWEST):
        parts.append(part)
        size += len(part)
        grows = not announced and "content-encoding" not in request.headers
        if size > SMALL and not reservation.size:
            wanted = _room_for(request, announced, limit)
            await reservation.take(min(wanted, reservation.memory.modest) if grows else wanted)
            began = time.monotonic()
        if grows and 0 < reservation.size < room_for(size):
            if not await reservation.grow(_room_for(request, announced, limit)):
                raise HTTPError(
                    503, "too many large bodies come without a Content-Length; send one, or try again later"
                )
            began = time.monotonic()
    reservation.arrived = True
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _room_for(request: Request[Any, Any, Any], announced: int, limit: int) -> int:
    """What a body may take that says to have `announced` bytes; 0: it does not say."""
    raw = announced or limit or BodyReservation.of(request.scope).memory.most
    return raw + room_for(limit or raw) if "content-encoding" in request.headers else room_for(raw)


async def _next(arriving: AsyncIterator[bytes], reservation: BodyReservation, due: float) -> bytes:
    """The next piece of a body, b"" at its end. HTTPError where others want its memory and it is late (`due`)."""
    if not reservation.size:
        return await anext(arriving, b"")
    coming = asyncio.ensure_future(anext(arriving, b""))
    try:
        while not coming.done():
            await asyncio.wait([coming], timeout=_LOOK_S)
            if reservation.memory.waiting and time.monotonic() > due:
                raise HTTPError(408, "the request body comes too slowly, and others wait for its memory")
        return coming.result()
    finally:
        if not coming.done():  # the pieces cannot be closed while one is awaited
            coming.cancel()
            await asyncio.wait([coming])


async def chunks(request: Request[Any, Any, Any], limit: int) -> AsyncIterator[bytes]:
    """The body piece by piece, never more than `limit` bytes in all (0: no limit)."""
    announced = request.headers.get("content-length", "")
    if limit and announced.isdigit() and int(announced) > limit:
        raise too_large(limit)
    size = 0
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part: bytes = message.get("body", b"")  # type: ignore[assignment]
        size += len(part)
        if limit and size > limit:
            raise too_large(limit)
        if part:
            yield part
        if not message.get("more_body", False):
            return


async def inline_images(content: Any, settings: Settings) -> None:
    """Put the images that `content` names by URL in place of the URLs; not unless the setting allows it: the dialect
    then refuses them. Raises HTTPError."""
    if settings.allow_image_urls:
        from omlx.server.image_urls import ImageFetcher  # its HTTP client takes a third of the start

        await ImageFetcher().inline(content)
