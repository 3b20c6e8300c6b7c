"""Token ids to text, one token at a time.

A *text stream* turns the ids of one reply into text that is always valid: bytes of a character that is not complete yet
wait for the rest (the Rust `DecodeStream` does that), and text that may be the beginning of a stop string waits until
it is known not to be one. So a client never sees half a character nor any part of a stop string.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from tokenizers.decoders import DecodeStream

_CONTEXT_TOKENS = 6
"""Prompt tokens that a stream sees first, so that a reply's first word keeps its leading blank."""


class StopStrings:
    """Looks for any of several strings in text that arrives in pieces, in time that hardly depends on their number.

    The strings are sorted and none begins another, so at each place one comparison tells whether one ends the text
    there (the last that does not come behind it), and one more whether one may still come to (the next).
    """

    def __init__(self, strings: list[str]) -> None:
        self._strings: list[str] = []
        for text in sorted({text for text in strings if text}):
            # Of two that begin at the same place the shorter one is complete first.
            if not (self._strings and text.startswith(self._strings[-1])):
                self._strings.append(text)
        self._longest = max(map(len, self._strings), default=0)
        self._held = ""
        self._places: list[int] = []
        """Where in the held text a stop string may have begun."""

    def feed(self, text: str) -> tuple[str, str]:
        """Text that is free to go, and the stop string that was found, or "" (it and all behind it are dropped).

        Of several the one that begins first; of those the shortest, which was complete first.
        """
        before = len(self._held)
        text = self._held + text
        places = []
        for place in (*self._places, *range(before, len(text))):
            rest = text[place : place + self._longest]
            behind = bisect_right(self._strings, rest)
            if behind and rest.startswith(self._strings[behind - 1]):
                self._held, self._places = "", []
                return text[:place], self._strings[behind - 1]
            if behind < len(self._strings) and self._strings[behind].startswith(rest):
                places.append(place)
        free = places[0] if places else len(text)
        self._held, self._places = text[free:], [place - free for place in places]
        return text[:free], ""

    def flush(self) -> str:
        """The held text, once no more can come."""
        text, self._held, self._places = self._held, "", []
        return text


class TextStream:
    """The text of one reply. `tokenizer` is the Rust tokenizer (`tokenizers.Tokenizer`)."""

    __slots__ = ("_stops", "_stream", "_tokenizer")

    def __init__(self, tokenizer: Any, prompt: list[int], stop: list[str]) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(ids=prompt[-_CONTEXT_TOKENS:], skip_special_tokens=False)
        self._stops = StopStrings(stop) if any(stop) else None

    def feed(self, token: int) -> tuple[str, str]:
        """New text that `token` completes, and the stop string that ended the reply ("": none did)."""
        text = self._stream.step(self._tokenizer, token) or ""
        return (text, "") if self._stops is None else self._stops.feed(text)

    def flush(self) -> str:
        """Text that was held back for a stop string that did not come. Bytes of an unfinished character are dropped."""
        return "" if self._stops is None else self._stops.flush()


class TokenTexts:
    """The text and bytes of single tokens, for log probabilities."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._cache: dict[int, tuple[str, list[int]]] = {}

    def __getitem__(self, token: int) -> tuple[str, list[int]]:
        text = self._cache.get(token)
        if text is None:
            raw = self._bytes(token)
            text = self._cache[token] = (raw.decode("utf-8", "replace"), list(raw))
        return text

    def _bytes(self, token: int) -> bytes:
        piece = self._tokenizer.id_to_token(token) or ""
        text: str = self._tokenizer.decode([token], skip_special_tokens=False)
        if "\ufffd" not in text:
            return text.encode() if not piece.startswith("▁") else (" " + text.lstrip(" ")).encode()
        if len(piece) == 6 and piece.startswith("<0x"):
            return bytes([int(piece[3:5], 16)])
        return bytes(_BYTE_OF.get(char, 0x3F) for char in piece)


def _byte_alphabet() -> dict[str, int]:
    """The characters that byte-level BPE vocabularies write for bytes, and the bytes they mean."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()
