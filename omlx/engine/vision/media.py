"""Pictures within a prompt, as plain data: where they stand, what their contents are, how positions count past them.

A *picture* is one thing that the vision tower encodes: an image, or the few frames of a video that it takes as one
moment. In the prompt it stands for *runs* of placeholder tokens, whose embeddings its *features* replace. *Parts* are
the pictures of a prompt in order; *placements* are parts whose token positions are known. Nothing here touches MLX.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from omlx_cache.keys import Media as CacheKey

Pixels = Mapping[str, NDArray[Any]]
"""What a processor made of a picture: the arrays that its model's vision tower takes."""


class ImageLayout(NamedTuple):
    """How a picture looks in the prompt."""

    text: str
    """Stands where the template marks the picture; holds one placeholder per run."""
    runs: tuple[int, ...]
    """Tokens that each placeholder becomes."""
    grid: tuple[int, int] = (1, 1)
    """Rows and columns of those tokens, for models that count positions in three dimensions."""


class Picture:
    """`digest` names its pixels, the way they are processed and the model. `pixels` are made when first asked for."""

    def __init__(self, digest: bytes, layout: ImageLayout, pixels: Pixels | None, make: Callable[[], Pixels]) -> None:
        self.digest = digest
        self.layout = layout
        self._pixels = pixels
        self._make = make

    def pixels(self) -> Pixels:
        if self._pixels is None:
            self._pixels = self._make()
        return self._pixels

    @property
    def nbytes(self) -> int:
        """Of the pixels that are kept."""
        return sum(array.nbytes for array in self._pixels.values()) if self._pixels is not None else 0

    def release(self) -> None:
        """The pixels need not be kept."""
        self._pixels = None


class Part(NamedTuple):
    picture: Picture
    time: int = 0
    """Steps in time behind the first moment of the same video."""
    continues: bool = False
    """It goes on with the video of the part before it: positions start from the same place."""


class Shown(NamedTuple):
    """An image or a video for the prompt: `text` replaces its mark; `parts` fill the placeholders in it."""

    text: str
    parts: tuple[Part, ...]
    frames: int = 1
    """Of a video."""


class Placement(NamedTuple):
    """A part in the prompt. `runs` are pairs of first token and number of tokens."""

    part: Part
    runs: tuple[tuple[int, int], ...]

    @property
    def start(self) -> int:
        return self.runs[0][0]

    @property
    def end(self) -> int:
        start, count = self.runs[-1]
        return start + count

    @property
    def picture(self) -> Picture:
        return self.part.picture

    def key(self) -> CacheKey:
        """How the prefix store knows it: the same pixels at another moment of a video are computed differently."""
        content = self.picture.digest
        if self.part.continues:
            content = hashlib.sha256(content + b"%d" % self.part.time).digest()
        return CacheKey(self.start, self.end, content)


class PromptMedia:
    """All pictures of one prompt."""

    def __init__(self, placements: Sequence[Placement], length: int, *, whole: bool, rotary: bool) -> None:
        """`length`: tokens of the prompt. `whole`: the tokens of a picture look at each other, so it has to be read in
        one chunk. `rotary`: positions count in three dimensions."""
        self.placements = tuple(placements)
        self.whole = whole
        self._length = length
        counted = positions(length, self.placements) if rotary else None
        self.positions = counted.values if counted else None
        """[3, tokens]; None where positions are just the numbers of the tokens."""
        self.delta = counted.delta if counted else 0
        """What is added to the number of a token behind the prompt to get its position."""
        self.keys = [placement.key() for placement in self.placements]
        self.features: dict[bytes, Any] = {}
        """By digest, while the prompt is read: the vision cache may drop what is still needed here."""

    def behind(self, count: int) -> PromptMedia:
        """The same pictures with so many further tokens in front."""
        moved = [
            Placement(item.part, tuple((start + count, size) for start, size in item.runs)) for item in self.placements
        ]
        return PromptMedia(moved, self._length + count, whole=self.whole, rotary=self.positions is not None)

    def outside(self, tokens: Sequence[int]) -> list[int]:
        """The prompt's tokens without those that stand for pictures."""
        kept: list[int] = []
        done = 0
        for item in self.placements:
            for start, count in item.runs:
                kept += tokens[done:start]
                done = start + count
        return [*kept, *tokens[done:]]

    def within(self, start: int, end: int) -> Iterator[Placement]:
        """The placements that have a token in [start, end)."""
        return (item for item in self.placements if item.start < end and item.end > start)

    def chunk_end(self, start: int, end: int) -> int:
        """`end`, moved where it would cut a picture that has to be read whole."""
        for item in self.within(start, end) if self.whole else ():
            if item.start < end < item.end:
                return item.start if item.start > start else item.end
        return end

    def positions_of(self, start: int, end: int) -> NDArray[np.int32]:
        """[3, tokens] of the tokens from `start` to `end`, those behind the prompt included."""
        assert self.positions is not None
        behind = np.arange(max(start, self._length), max(end, self._length)) + self.delta
        rest = np.broadcast_to(behind, (3, len(behind)))
        return np.concatenate([self.positions[:, start:end], rest], axis=1).astype(np.int32)

    def release(self) -> None:
        """The prompt is read."""
        self.features.clear()
        for item in self.placements:
            item.picture.release()


class Positions(NamedTuple):
    values: NDArray[np.int32]
    delta: int


class MarkerMismatch(Exception):
    """The text holds more or fewer marks than there are pictures."""


def expand(
    tokens: Sequence[int], parts: Sequence[Part], placeholders: frozenset[int]
) -> tuple[list[int], list[Placement]]:
    """Each placeholder token repeated as often as its picture wants it, and where they stand now."""
    runs = [(number, count) for number, part in enumerate(parts) for count in part.picture.layout.runs]
    pieces: list[list[tuple[int, int]]] = [[] for _ in parts]
    expanded: list[int] = []
    taken = 0
    for token in tokens:
        if token not in placeholders:
            expanded.append(token)
            continue
        if taken == len(runs):
            raise MarkerMismatch
        number, count = runs[taken]
        pieces[number].append((len(expanded), count))
        expanded += [token] * count
        taken += 1
    if taken < len(runs):
        raise MarkerMismatch
    return expanded, [Placement(part, tuple(spans)) for part, spans in zip(parts, pieces, strict=True)]


def positions(length: int, placements: Sequence[Placement]) -> Positions:
    """Time, row and column of each token: text counts up in all three, a picture's tokens lie in a plane of theirs."""
    values = np.empty((3, length), np.int32)
    done = following = base = 0
    for item in placements:
        start, end = item.start, item.end
        values[:, done:start] = following + np.arange(start - done)
        following += start - done
        if not item.part.continues:
            base = following
        rows, columns = item.picture.layout.grid
        values[0, start:end] = base + item.part.time
        values[1, start:end] = base + np.repeat(np.arange(rows), columns)
        values[2, start:end] = base + np.tile(np.arange(columns), rows)
        following = max(following, base + max(item.part.time, rows - 1, columns - 1) + 1)
        done = end
    values[:, done:] = following + np.arange(length - done)
    return Positions(values, following - done)
