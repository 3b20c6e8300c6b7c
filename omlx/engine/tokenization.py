"""Tokenizing long texts: in *pieces*, so that one text neither stops the other threads nor takes memory by its length.

A tokenizer needs about 200 bytes of memory for each byte of text while it works, and `encode` of the `tokenizers`
package holds Python's global lock for all of it; `encode_batch_fast` does not. So a long text is cut into pieces of
PIECE characters, and tokenizing ends as soon as there are more tokens than the caller can use.

A text is cut only where its tokens are the same with and without the cut: between two words, and each cut is checked by
tokenizing the text around it with and without. Where a tokenizer has no such place within LONGEST_PIECE characters, the
text is cut there anyway. The places depend on the text in front of them only: a text and its continuation begin alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

PIECE = 1 << 16
"""Characters, about 20 ms and 10 MB of work."""
LONGEST_PIECE = 1 << 20
_SMALLEST_PIECE = 1 << 12
_AROUND = 128
"""Characters on either side of a cut that are tokenized to check it."""
_TRIES = 8
"""Cuts that are checked for one piece before it grows."""
_BETWEEN_WORDS = re.compile(r"(?<=[^\W\d_])(?=[ \u3001\u3002\uff0c][^\W\d_])|(?<=[^\s]\n)(?=[^\W\d_])")
"""In front of the one space or CJK mark between two letters, or behind the one line end in front of a letter."""

EncodeMany = Callable[[Sequence[str]], list[list[int]]]


def fast_encode(tokenizer: Any) -> EncodeMany:
    """The token ids of several texts, without special tokens, by a Rust tokenizer; other threads go on meanwhile."""

    def encode(texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    return encode


def nothing() -> None:
    """The `check` of a caller who has nothing to check."""


def ids(
    text: str,
    encode: EncodeMany,
    *,
    most: int | None = None,
    check: Callable[[], None] = nothing,
    piece: int = PIECE,
) -> tuple[list[int], int]:
    """The token ids of `text`, and how many of its characters they are of.

    With `most`, tokenizing ends once there are more than so many ids: then these are the first of them. `check` is
    called after each piece (of `piece` characters or more); what it raises ends the work.
    """
    tokens: list[int] = []
    read = 0
    for part in pieces(text, encode, piece):
        tokens += encode([part])[0]
        read += len(part)
        if most is not None and len(tokens) > most:
            break
        check()
    return tokens, read


def head(text: str, encode: EncodeMany, tokens: int) -> str:
    """The beginning of `text` that holds more than `tokens` tokens, and not many times more; all of a text that has
    fewer."""
    piece = min(max(8 * tokens, _SMALLEST_PIECE), PIECE)
    return text[: ids(text, encode, most=tokens, piece=piece)[1]] if len(text) > 2 * piece else text


def tail(text: str, encode: EncodeMany, tokens: int, longest: int) -> str:
    """The end of `text` that holds more than `tokens` tokens; all of a text that has fewer.

    `longest`: characters of the longest token. Only so much of the text is looked at.
    """
    size = 2 * PIECE
    while size < len(text):
        part = text[-size:]
        if len(part) // longest > tokens or len(ids(part, encode, most=tokens)[0]) > tokens:
            return part
        size *= 2
    return text


def pieces(text: str, encode: EncodeMany, piece: int = PIECE) -> Iterator[str]:
    """The text in parts that are tokenized one by one, of about `piece` characters."""
    start = 0
    while len(text) - start > piece:
        end = _next_cut(text, start, encode, piece)
        yield text[start:end]
        start = end
    if start < len(text) or not text:
        yield text[start:]


def _next_cut(text: str, start: int, encode: EncodeMany, piece: int) -> int:
    # The first half of a piece is not searched: pieces would get short.
    places = _BETWEEN_WORDS.finditer(text, start + piece // 2, min(start + LONGEST_PIECE, len(text)))
    for place in islice(places, _TRIES):
        if _keeps_tokens(text, place.start(), encode):
            return place.start()
    return min(start + LONGEST_PIECE, len(text))


def _keeps_tokens(text: str, cut: int, encode: EncodeMany) -> bool:
    """Whether the text around `cut` has the same tokens in one and in two parts."""
    before, behind = text[max(cut - _AROUND, 0) : cut], text[cut : cut + _AROUND]
    whole, left, right = encode([before + behind, before, behind])
    return whole == left + right
