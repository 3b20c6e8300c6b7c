"""How many pixels an image file says to have, read from its beginning without opening it.

What a decoder will do depends on it more than on the bytes: fifty kilobytes can be fifty million pixels. Only what the
format itself makes decisive is read; anything else (AVIF, a damaged file, a long way to the size) is not known.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

_MOST_BLOCKS: Final = 200
"""Segments or extensions in front of the size that are skipped."""
_NO_FRAME_HEADER: Final = frozenset({0xC4, 0xC8, 0xCC})
"""JPEG markers among those of frame headers that are none."""


def declared_pixels(data: bytes) -> int | None:
    """Pixels of the first picture in the file; None where they cannot be told."""
    reader = next((read for start, read in _READERS if data.startswith(start)), None)
    try:
        return None if reader is None else reader(data)
    except (struct.error, IndexError):
        return None


def _png(data: bytes) -> int | None:
    width, height = struct.unpack_from(">II", data, 16)
    return int(width * height) if data[12:16] == b"IHDR" else None


def _bmp(data: bytes) -> int | None:
    width, height = struct.unpack_from("<ii", data, 18)
    return int(abs(width) * abs(height)) if struct.unpack_from("<I", data, 14)[0] >= 40 else None


def _gif(data: bytes) -> int | None:
    """The larger of the screen and the first frame, for a decoder makes room for both."""
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    position = 13 + _colors(flags)
    for _ in range(_MOST_BLOCKS):
        kind, position = data[position], position + 1
        if kind == 0x2C:
            left, top, wide, high = struct.unpack_from("<HHHH", data, position)
            return int(max(width, left + wide) * max(height, top + high))
        if kind != 0x21:
            return None
        position += 1
        while length := data[position]:
            position += 1 + length
        position += 1
    return None


def _colors(flags: int) -> int:
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _webp(data: bytes) -> int | None:
    """Extended files have a canvas, in which every frame must lie."""
    if data[8:12] != b"WEBP":
        return None
    kind = data[12:16]
    if kind == b"VP8X":
        wide, high = (int.from_bytes(data[position : position + 3], "little") + 1 for position in (24, 27))
        return wide * high
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return int(((bits & 0x3FFF) + 1) * ((bits >> 14 & 0x3FFF) + 1))
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return int((width & 0x3FFF) * (height & 0x3FFF))
    return None


def _jpeg(data: bytes) -> int | None:
    position = 2
    for _ in range(_MOST_BLOCKS):
        if data[position] != 0xFF:
            return None
        kind = data[position + 1]
        if 0xC0 <= kind <= 0xCF and kind not in _NO_FRAME_HEADER:
            height, width = struct.unpack_from(">HH", data, position + 5)
            return int(width * height)
        position += 2 + int(struct.unpack_from(">H", data, position + 2)[0])
    return None


_READERS: Final[tuple[tuple[bytes, Callable[[bytes], int | None]], ...]] = (
    (b"\x89PNG\r\n\x1a\n", _png),
    (b"\xff\xd8", _jpeg),
    (b"RIFF", _webp),
    (b"GIF8", _gif),
    (b"BM", _bmp),
)
