"""The chain: a prompt cut into pieces, each with its key.

A *chain* grows with the tokens of one sequence and hands out its pieces: full blocks, and partial pieces that end
anywhere within a block. Lookup, capture and explain walk the same chain, so they cannot disagree on keys.
"""

from __future__ import annotations

from collections.abc import Sequence

from omlx_cache.keys import TOKEN_BYTES, Media, child, media_mark, pack
from omlx_cache.records import Piece


class Chain:
    """The pieces of one sequence. `media` are the images of the prompt, by token positions."""

    def __init__(self, namespace: bytes, block_size: int, tokens: Sequence[int], media: Sequence[Media] = ()) -> None:
        self.block_size = block_size
        self.media = tuple(media)
        self.packed = b""
        self.blocks: list[Piece] = []
        """Full blocks in order."""
        self._namespace = namespace
        self.extend(tokens)

    def __len__(self) -> int:
        """Number of tokens."""
        return len(self.packed) // TOKEN_BYTES

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens."""
        self.packed += pack(tokens)
        while (len(self.blocks) + 1) * self.block_size <= len(self):
            level = len(self.blocks)
            self.blocks.append(self.piece(level, (level + 1) * self.block_size))

    @property
    def levels(self) -> int:
        """Number of blocks, the incomplete one at the end included."""
        return -(-len(self) // self.block_size)

    def parent(self, level: int) -> bytes:
        """The key that the pieces of this block hang on."""
        return self.blocks[level - 1].key if level else self._namespace

    def tokens(self, start: int, end: int) -> bytes:
        """Packed tokens [start, end)."""
        return self.packed[start * TOKEN_BYTES : end * TOKEN_BYTES]

    def piece(self, level: int, end: int) -> Piece:
        """The piece from the start of block `level` to token `end`, which must lie within that block."""
        start = level * self.block_size
        if end == start + self.block_size and level < len(self.blocks):
            return self.blocks[level]
        parent, packed, mark = self.parent(level), self.tokens(start, end), media_mark(self.media, start, end)
        return Piece(child(parent, packed, mark), parent, start, packed, mark)

    def piece_ending(self, position: int) -> Piece:
        """The piece that ends at this position."""
        return self.piece((position - 1) // self.block_size, position)
