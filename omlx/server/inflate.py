"""*Inflating*: request bodies that come compressed (gzip, zstd), never to more than the limit of plain ones.

A body is inflated twice: first to count, keeping nothing, so that a bomb is refused before it takes memory and any
other body takes what it needs and no more; then to keep.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterator

from omlx.protocols.http_error import HTTPError
from omlx.server.body_memory import SMALL, BodyReservation
from omlx.server.route_info import NAMES_BYTES
from omlx.units import human_bytes

_WINDOW = 1 << 27
"""Largest zstd window in bytes: what its `--ultra` levels use, and the memory one body may cost beside itself."""
_PIECE = 1 << 18
_MOST_MEMBERS = 10_000
"""gzip and zstd let a stream have parts without end, also empty ones, and each costs more than its bytes."""
_ZSTD_FRAME, _ZSTD_SKIPPED = b"\x28\xb5\x2f\xfd", b"\x2a\x4d\x18"
"""What each part has near its beginning; in compressed data they are there once in megabytes."""

_Inflater = Callable[[bytes], Iterator[bytes]]


async def inflate(body: bytes, encoding: str, limit: int, reservation: BodyReservation) -> bytes:
    """`body` without its Content-Encoding, at most `limit` bytes (0: any size); a large one waits for its reservation.

    Raises HTTPError: 415 for an unknown encoding, 400 for bytes that are not what it says, 413 past the limit.
    """
    name = encoding.strip().lower()
    if name in {"", "identity"}:
        return body
    inflater = {"gzip": _gzip, "x-gzip": _gzip, "zstd": _zstd}.get(name)
    if inflater is None:
        raise HTTPError(415, f"the content encoding {name} is not supported; send gzip, zstd or none")
    most = limit or (1 << 62)
    # A few bytes may become gigabytes: never on the event loop, and those that become much one after the other.
    size = await asyncio.to_thread(_count, inflater, body, min(most, reservation.memory.modest // 2))
    if reservation.memory.modest // 2 < size <= most:
        async with reservation.counting():
            size = await asyncio.to_thread(_count, inflater, body, most)
    if size > most:
        raise too_large(limit, " when decompressed")
    if size > SMALL:
        await reservation.take(room_for(size))
    return await asyncio.to_thread(b"".join, inflater(body))


def too_large(limit: int, when: str = "") -> HTTPError:
    """What is said of a body beyond `limit` bytes."""
    larger = f"the request body is larger than {human_bytes(limit)}{when}"
    if limit == NAMES_BYTES:
        return HTTPError(413, f"{larger}, the most that this route takes")
    return HTTPError(413, f"{larger}; raise the setting max_body to allow it")


def room_for(size: int) -> int:
    """Bytes that a body of `size` takes: as it came, and as it is read."""
    return 2 * size


def _count(inflater: _Inflater, body: bytes, most: int) -> int:
    """How many bytes `body` becomes; some number beyond `most` as soon as it is more."""
    size = 0
    for piece in inflater(body):
        size += len(piece)
        if size > most:
            break
    return size


def _gzip(body: bytes) -> Iterator[bytes]:
    rest, members = memoryview(body), 0
    while rest:
        members += 1
        if members > _MOST_MEMBERS:
            raise HTTPError(400, f"the request body is gzip of more than {_MOST_MEMBERS:,} parts; send it as one")
        member = zlib.decompressobj(wbits=31)
        # What zlib leaves of its input it copies: begin with little, since the next member may be near.
        span = 1 << 8
        while not member.eof:
            chunk = rest[:span]
            try:
                piece = member.decompress(chunk, _PIECE)
            except zlib.error:
                raise HTTPError(400, _untrue("gzip")) from None
            if not chunk and not piece and not member.eof:
                raise HTTPError(400, "the request body is gzip that ends early")
            left = member.unused_data if member.eof else member.unconsumed_tail
            rest = rest[len(chunk) - len(left) :]
            span = min(2 * span, 1 << 16)
            yield piece


def _zstd(body: bytes) -> Iterator[bytes]:
    import zstandard  # only Codex and few others compress

    if body.count(_ZSTD_FRAME) + body.count(_ZSTD_SKIPPED) > _MOST_MEMBERS:
        raise HTTPError(400, f"the request body is zstd of more than {_MOST_MEMBERS:,} parts; send it as one")
    reader = zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(body, read_across_frames=True)
    try:
        while piece := reader.read(_PIECE):
            yield piece
    except zstandard.ZstdError:
        # Also a window that is too large.
        raise HTTPError(400, _untrue("zstd")) from None


def _untrue(encoding: str) -> str:
    return f"the request body is not {encoding}, as its Content-Encoding says, or it is damaged"
