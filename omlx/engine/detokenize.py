"""Token ids to text, one token at a time.

A *text stream* turns the ids of one reply into text that is always valid: bytes of a character that is not complete yet
wait for the rest (the Rust `DecodeStream` does that), and text that may be the beginning of a stop string waits until
it is known not to be one. So a client never sees half a character nor any part of a stop string.
"""

from __future__ import annotations

from typing import Any

from tokenizers.decoders import DecodeStream

_CONTEXT_TOKENS = 6
"""Prompt tokens that a stream sees first, so that a reply's first word keeps its leading blank."""


class StopStrings:
    """Looks for any of several strings in text that arrives in pieces."""

    def __init__(self, strings: list[str]) -> None:
        self._strings = [text for text in strings if text]
        self._held = ""

    def feed(self, text: str) -> tuple[str, str]:
        """Text that is free to go, and the stop string that was found, or "" (it and all behind it are dropped).

        Of several the one that begins first; of those the shortest, which was complete first.
        """
        text = self._held + text
        hits = [(at, len(stop), stop) for stop in self._strings if (at := text.find(stop)) >= 0]
        if hits:
            self._held = ""
            at, _, stop = min(hits)
            return text[:at], stop
        keep = max((_overlap(text, stop) for stop in self._strings), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], ""

    def flush(self) -> str:
        """The held text, once no more can come."""
        text, self._held = self._held, ""
        return text


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0


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
        found = self._cache.get(token)
        if found is None:
            raw = self._bytes(token)
            found = self._cache[token] = (raw.decode("utf-8", "replace"), list(raw))
        return found

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
    return table | {chr(256 + at): byte for at, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()
