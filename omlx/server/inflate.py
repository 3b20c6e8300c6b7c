"""*Inflating*: request bodies that come compressed (gzip, zstd), never to more than the limit of plain ones."""

from __future__ import annotations

import asyncio
import zlib

from omlx.dialect.refusal import Refusal
from omlx.units import human_bytes

_WINDOW = 1 << 27
"""Largest zstd window in bytes: what its `--ultra` levels use, and the memory one body may cost beside itself."""


async def inflate(body: bytes, encoding: str, limit: int) -> bytes:
    """`body` without its Content-Encoding, at most `limit` bytes (0: any size).

    Raises Refusal: 415 for an unknown encoding, 400 for bytes that are not what it says, 413 past the limit.
    """
    name = encoding.strip().lower()
    if name in {"", "identity"}:
        return body
    inflater = {"gzip": _gzip, "x-gzip": _gzip, "zstd": _zstd}.get(name)
    if inflater is None:
        raise Refusal(415, f"the content encoding {name} is not supported; send gzip, zstd or none")
    most = limit or (1 << 62)
    # A few bytes may become gigabytes: never on the event loop.
    plain = await asyncio.to_thread(inflater, body, most)
    if len(plain) > most:
        raise Refusal(
            413, f"the request body is larger than {human_bytes(limit)} when decompressed; raise the setting max_body"
        )
    return plain


def _gzip(body: bytes, most: int) -> bytes:
    """At most one byte more than `most`."""
    parts: list[bytes] = []
    size = 0
    while body and size <= most:
        member = zlib.decompressobj(wbits=31)
        try:
            parts.append(member.decompress(body, most + 1 - size))
        except zlib.error as error:
            raise Refusal(400, f"the request body is not valid gzip: {error}") from None
        size += len(parts[-1])
        if size <= most and not member.eof:
            raise Refusal(400, "the request body is not valid gzip: it ends early")
        body = member.unused_data
    return b"".join(parts)


def _zstd(body: bytes, most: int) -> bytes:
    """At most one byte more than `most`."""
    import zstandard  # only Codex and few others compress

    reader = zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(body, read_across_frames=True)
    parts: list[bytes] = []
    size = 0
    try:
        while size <= most:
            part = reader.read(min(1 << 20, most + 1 - size))
            if not part:
                break
            parts.append(part)
            size += len(part)
    except zstandard.ZstdError as error:
        raise Refusal(400, f"the request body is not valid zstd: {error}") from None
    return b"".join(parts)
