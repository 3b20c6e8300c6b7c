"""Keys: the names under which pieces of a prompt are stored.

A *key* is 32 bytes of SHA-256 over everything the key/value tensors of a piece depend on: the model's weights, the
layout of its cache, every token before the piece, the piece's own tokens, and the images among them. Two pieces with
one key therefore hold the same numbers, whoever computed them; a changed adapter, quantization or picture is another
key. Keys form a chain: each is made from its parent's. Pure functions, no owner.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from array import array
from collections.abc import Sequence
from typing import NamedTuple

TOKEN_BYTES = 4
_MARK = struct.Struct(">ii32s")
"""An image in a piece: where it starts and ends, counted from the piece's start, and its content."""


class Media(NamedTuple):
    """An image (or other media) of a prompt: it stands for tokens [start, end); `digest` is that of its content."""

    start: int
    end: int
    digest: bytes


def namespace(fingerprint: str, layout: str, block_size: int) -> bytes:
    """The root of all chains of one model in one cache layout.

    `fingerprint` must differ wherever weights, adapter, quantization or compute precision differ.
    """
    return _digest(b"omlx-kv-1", fingerprint.encode(), layout.encode(), block_size.to_bytes(4, "big"))


def pack(tokens: Sequence[int]) -> bytes:
    """Token ids as big-endian 32-bit words: byte order is then token order, so packed prompts sort and compare."""
    words = array("I", tokens)
    if sys.byteorder == "little":
        words.byteswap()
    return words.tobytes()


def unpack(packed: bytes) -> list[int]:
    """The token ids that `pack` was given."""
    words = array("I", packed)
    if sys.byteorder == "little":
        words.byteswap()
    return words.tolist()


def child(parent: bytes, packed: bytes, media: bytes = b"") -> bytes:
    """Key of the piece with these tokens right behind `parent` (a key, or the namespace for the first piece)."""
    return _digest(parent, packed, media)


def media_mark(media: Sequence[Media], start: int, end: int) -> bytes:
    """What the images within tokens [start, end) add to the piece's key: their places and contents; b"" for none."""
    inside = [item for item in media if item.start < end and item.end > start]
    return b"".join(_MARK.pack(item.start - start, item.end - start, _digest(item.digest)) for item in inside)


def common_media(a: bytes, b: bytes, tokens: int) -> int:
    """How many of the first `tokens` tokens of two pieces hold the same images, by their marks.

    Marks come from disk too: one that cannot be read agrees with nothing but itself.
    """
    if a == b:
        return tokens
    if len(a) % _MARK.size or len(b) % _MARK.size:
        return 0
    for start in range(0, max(len(a), len(b)), _MARK.size):
        one, other = a[start : start + _MARK.size], b[start : start + _MARK.size]
        if one != other:
            first = min(int(_MARK.unpack(mark)[0]) for mark in (one, other) if mark)
            return min(tokens, max(0, first))
    return tokens


def common_tokens(a: bytes, b: bytes) -> int:
    """Number of leading tokens that two packed sequences share."""
    size = min(len(a), len(b))
    if a[:size] == b[:size]:
        return size // TOKEN_BYTES
    low, high = 0, size // TOKEN_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        if a[: middle * TOKEN_BYTES] == b[: middle * TOKEN_BYTES]:
            low = middle
        else:
            high = middle - 1
    return low


def _digest(*parts: bytes) -> bytes:
    state = hashlib.sha256()
    for part in parts:
        state.update(len(part).to_bytes(4, "big"))
        state.update(part)
    return state.digest()
