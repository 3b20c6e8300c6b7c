"""Records: what is stored under a key.

A *record* holds one kind of tensors for one *piece* of a prompt. A piece is a full block of tokens, or the shorter
tail behind the last full block. Kinds:

- `KV`: keys and values of full-attention layers, for the piece's own tokens. Can be cut after any token. - `WINDOW`:
the same for layers that look back a limited distance; only the last window of a prompt is ever needed, so these
records may go earlier than the `KV` records of the same piece. - `STATE`: the state of recurrent layers right behind
the piece's last token; useless at any other position. - `FEATURES`: what a vision tower made of a picture. Its key
is the picture's digest, and its piece holds no tokens.

Arrays of a record are stacked over layers: a few arrays per record, not hundreds. A record never changes. The hot
tier owns records in RAM, the cold tier owns their files.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

from omlx_cache.keys import TOKEN_BYTES


class Kind(IntEnum):
    KV = 0
    WINDOW = 1
    STATE = 2
    FEATURES = 3


class RecordName(NamedTuple):
    """What identifies a record in every tier."""

    key: bytes
    kind: Kind


class Piece(NamedTuple):
    """Where a piece stands: its chain and its tokens (packed), and the mark of the images among them."""

    key: bytes
    parent: bytes
    start: int
    packed: bytes
    media: bytes

    @property
    def size(self) -> int:
        """Number of tokens."""
        return len(self.packed) // TOKEN_BYTES

    @property
    def end(self) -> int:
        return self.start + self.size


class Record(NamedTuple):
    """One record with its tensors (evaluated MLX arrays), in the order the layout defines.

    `meta` is the layout's own note on how the arrays map to layers; empty where the layout alone says it. `skip` tokens
    at the start of the piece are missing from the arrays: windowed layers had forgotten them already.
    """

    piece: Piece
    kind: Kind
    arrays: tuple[Any, ...]
    nbytes: int
    meta: str = ""
    skip: int = 0

    @property
    def name(self) -> RecordName:
        return RecordName(self.piece.key, self.kind)


class IndexEntry(NamedTuple):
    """What a tier says about a record without touching its tensors."""

    piece: Piece
    kind: Kind
    nbytes: int
    skip: int = 0


class StoredSize(NamedTuple):
    """A record's size and `skip`, for one whose piece the asker knows."""

    nbytes: int
    skip: int
