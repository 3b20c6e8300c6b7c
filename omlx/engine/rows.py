"""A *row* is one input as an encoder reads it: token ids that fit, and segment ids where two texts were joined.

Rows are made by helper threads, from the tokenizer alone. An *encoder* (an embedder or a reranker) computes some
numbers for each row of a padded batch; what a row gets does not depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import mlx.core as mx
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Text = str | tuple[str, str]
"""One text, or a query and a document."""


class Row(NamedTuple):
    tokens: list[int]
    segments: Sequence[int] = ()
    """Which of two texts a token is from; empty where the tokenizer does not tell."""


class TooLong(Exception):
    """A text exceeds the context and may not be cut."""


class Encoder(Protocol):
    """What turns texts into numbers. `rows` may be called from any thread, `compute` from the one that owns MLX."""

    def rows(self, texts: Sequence[Text], *, truncate: bool) -> list[Row]:
        """Raises TooLong where `truncate` is False and a text does not fit."""

    def compute(self, rows: Sequence[Row]) -> NDArray[np.float32]:
        """Shape (rows, numbers per row)."""


class RowMaker:
    """Texts to rows with the model's own special tokens, at most `limit` tokens each."""

    def __init__(self, tokenizer: Any, *, limit: int, filler: int, segments: bool = False) -> None:
        """`tokenizer`: a Rust tokenizer that nobody else uses. `filler` stands for a text that has no tokens at all.

        `segments`: the model has an embedding for the second text of a pair.
        """
        # A tokenizer.json may carry the padding of its training. Truncation by the tokenizer keeps the special tokens.
        tokenizer.no_padding()
        tokenizer.enable_truncation(limit, strategy="longest_first")
        self._tokenizer = tokenizer
        self._filler = filler
        self._segments = segments

    def rows(self, texts: Sequence[Text], *, truncate: bool) -> list[Row]:
        found = []
        for encoding in self._tokenizer.encode_batch(list(texts)):
            if encoding.overflowing and not truncate:
                raise TooLong
            segments = encoding.type_ids if self._segments and any(encoding.type_ids) else ()
            found.append(Row(encoding.ids or [self._filler], segments))
        return found


class Batch(NamedTuple):
    """Rows side by side, padded on the right. Shapes (rows, longest row)."""

    tokens: mx.array
    mask: mx.array
    """1 where a token is, 0 where padding is; int32."""
    segments: mx.array | None
    lengths: mx.array
    """Shape (rows,)."""


def pad(rows: Sequence[Row], filler: int) -> Batch:
    lengths = [len(row.tokens) for row in rows]
    width = max(lengths)
    tokens = np.full((len(rows), width), filler, dtype=np.int32)
    mask = np.zeros((len(rows), width), dtype=np.int32)
    segments = np.zeros((len(rows), width), dtype=np.int32)
    for at, row in enumerate(rows):
        tokens[at, : lengths[at]] = row.tokens
        mask[at, : lengths[at]] = 1
        if row.segments:
            segments[at, : lengths[at]] = row.segments
    told = any(row.segments for row in rows)
    return Batch(mx.array(tokens), mx.array(mask), mx.array(segments) if told else None, mx.array(lengths))


def to_host(values: mx.array) -> NDArray[np.float32]:
    """Compute `values` and copy them out, as float32."""
    return np.array(values.astype(mx.float32), dtype=np.float32)
