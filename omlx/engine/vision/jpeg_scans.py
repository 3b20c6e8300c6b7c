"""How many *scans* a JPEG file has: passes over the picture, each of which refines all of its pixels.

A progressive file may hold any number of them, and each costs about as much as decoding the whole picture does. Ten are
usual; forty thousand are an attack. They are counted without decoding anything.
"""

from __future__ import annotations

import re
from typing import Final

_MARKER: Final = re.compile(rb"\xff+([^\x00\xff\xd0-\xd7])", re.DOTALL)
"""The next one in compressed data, where 0xff00 is a value and 0xffd0 to 0xffd7 are places to start again."""
_ALONE: Final = frozenset({0x01, 0xD8})
"""Markers without a length."""
_SCAN, _END = 0xDA, 0xD9


def count_scans(data: bytes, most: int) -> int:
    """Scans of the first picture in a JPEG file, counted up to `most` + 1; 0 where it is none or damaged."""
    if not data.startswith(b"\xff\xd8"):
        return 0
    position, count = 2, 0
    while count <= most and (marker := _MARKER.search(data, position)) is not None:
        kind, position = marker[1][0], marker.end()
        if kind == _END:
            break
        if kind not in _ALONE:
            position += int.from_bytes(data[position : position + 2], "big")
        count += kind == _SCAN
    return count
