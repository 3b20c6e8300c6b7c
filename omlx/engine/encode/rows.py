"""A *row* is one input as an encoder reads it: token ids that fit, and segment ids where two texts were joined.

Rows are made by helper threads, from the tokenizer alone. An *encoder* (an embedder or a reranker) computes some
numbers for each row of a padded batch; what a row gets does not depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import mlx.core as mx
import numpy as np
from tokenizers import Tokenizer

from omlx.engine import tokenization

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from omlx.engine.encode.chunked import Parts

Text = str | tuple[str, str] | list[int]
"""One text, a query and a document, or the tokens of a text."""


_LONG_TOKENS = 16
"""Characters for each token of a full row from which on a text is long."""


class EncodeRow(NamedTuple):
    tokens: list[int]
    segments: Sequence[int] = ()
    """Which of two texts a token is from; empty where the tokenizer does not tell."""


class TooLong(Exception):
    """A text exceeds the context and may not be cut."""


class BadTokens(Exception):
    """Token ids that the model does not have; the message is a sentence for the user."""


class Encoder(Protocol):
    """What turns texts into numbers. `rows` may be called from any thread, `compute` from the one that owns MLX."""

    def rows(self, texts: Sequence[Text], *, truncate: bool, limit: int = 0) -> list[EncodeRow]:
        """`limit`: tokens of a row at most, where that is fewer than the model takes; 0: as many as it takes.

        Raises TooLong where `truncate` is False and a text does not fit; BadTokens.
        """

    def compute(self, rows: Sequence[EncodeRow]) -> NDArray[np.float32]:
        """Shape (rows, numbers per row)."""

    def begin(self, row: EncodeRow) -> Parts | None:
        """A row that is too long to be computed at once; None: it has to be."""


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
        self._limit = limit
        self._filler = filler
        self._segments = segments
        self._vocabulary = tokenizer.get_vocab_size()
        self._before, self._after = _special_tokens(tokenizer)

    def rows(self, texts: Sequence[Text], *, truncate: bool, limit: int = 0) -> list[EncodeRow]:
        shortened = [self._begin(text) for text in texts if not isinstance(text, list)]
        encoded = iter(self._tokenizer.encode_batch(shortened))
        rows = []
        for text in texts:
            if isinstance(text, list):
                rows.append(self._row(text, truncate))
                continue
            encoding = next(encoded)
            if encoding.overflowing and not truncate:
                raise TooLong
            segments = encoding.type_ids if self._segments and any(encoding.type_ids) else ()
            rows.append(EncodeRow(encoding.ids or [self._filler], segments))
        return [self._limited(row, limit, truncate) for row in rows] if 0 < limit < self._limit else rows

    def _limited(self, row: EncodeRow, limit: int, truncate: bool) -> EncodeRow:
        """The row of one text with at most `limit` tokens, its special tokens among them."""
        if len(row.tokens) <= limit:
            return row
        if not truncate:
            raise TooLong
        after = self._after if row.tokens[len(row.tokens) - len(self._after) :] == self._after else []
        kept = max(limit - len(after), 0)
        return EncodeRow([*row.tokens[:kept], *after][:limit], row.segments[:limit])

    def _begin(self, text: str | tuple[str, str]) -> str | tuple[str, str]:
        """As much of it as is read when a row is full; more than fits of a text that is longer."""
        if isinstance(text, str):
            return self._head(text)
        return self._head(text[0]), self._head(text[1])

    def _head(self, text: str) -> str:
        # Truncating two long texts against each other takes time by the product of their lengths.
        return tokenization.head(text, self._whole, self._limit) if len(text) > _LONG_TOKENS * self._limit else text

    @cached_property
    def _whole(self) -> tokenization.EncodeMany:
        """For long texts: a tokenizer that truncates reads all of them first. Made late: it takes a while."""
        return tokenization.fast_encode(untruncated(self._tokenizer))

    def _row(self, tokens: list[int], truncate: bool) -> EncodeRow:
        """The row that the text of `tokens` would have; it may bring the special tokens or leave them out."""
        check_tokens(tokens, self._vocabulary)
        before, after = self._before, self._after
        end = len(tokens) - len(after)
        whole = bool(before or after) and tokens[: len(before)] == before and tokens[end:] == after
        body = tokens[len(before) : end] if whole else tokens
        room = self._limit - len(before) - len(after)
        if len(body) > room and not truncate:
            raise TooLong
        return EncodeRow([*before, *body[:room], *after] or [self._filler])


def untruncated(tokenizer: Any) -> Any:
    """A copy of a Rust tokenizer that neither truncates nor pads."""
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy


def check_tokens(tokens: Sequence[int], vocabulary: int) -> None:
    """Raises BadTokens."""
    if any(not 0 <= token < vocabulary for token in tokens):
        raise BadTokens(f"the input holds a token outside the vocabulary of {vocabulary}")


def _special_tokens(tokenizer: Any) -> tuple[list[int], list[int]]:
    """What the tokenizer puts before and behind a text."""
    plain = list(tokenizer.encode("a", add_special_tokens=False).ids)
    full = list(tokenizer.encode("a").ids)
    start = next((index for index in range(len(full)) if full[index : index + len(plain)] == plain), 0)
    return full[:start], full[start + len(plain) :]


class PaddedRows(NamedTuple):
    """Rows side by side, padded on the right. Shapes (rows, longest row)."""

    tokens: mx.array
    mask: mx.array
    """1 where a token is, 0 where padding is; int32."""
    segments: mx.array | None
    lengths: mx.array
    """Shape (rows,)."""


def pad(rows: Sequence[EncodeRow], filler: int) -> PaddedRows:
    lengths = [len(row.tokens) for row in rows]
    width = max(lengths)
    tokens = np.full((len(rows), width), filler, dtype=np.int32)
    mask = np.zeros((len(rows), width), dtype=np.int32)
    segments = np.zeros((len(rows), width), dtype=np.int32)
    for index, row in enumerate(rows):
        tokens[index, : lengths[index]] = row.tokens
        mask[index, : lengths[index]] = 1
        if row.segments:
            segments[index, : lengths[index]] = row.segments
    has_segments = any(row.segments for row in rows)
    return PaddedRows(mx.array(tokens), mx.array(mask), mx.array(segments) if has_segments else None, mx.array(lengths))


def to_host(values: mx.array) -> NDArray[np.float32]:
    """Compute `values` and copy them out, as float32."""
    return np.array(values.astype(mx.float32), dtype=np.float32)
