"""The *tally* of a JSON body: how many values of each kind it holds, counted in its bytes before it is decoded.

Decoded, an object or a text takes a hundred times its bytes and some microseconds of every step of a request, all of it
under Python's lock. So their number is limited, whatever the size of the body; pictures and documents are few values.
"""

from __future__ import annotations

from typing import NamedTuple

MOST_VALUES = 2_000_000
"""Values of all kinds: a context of a million tokens is a million values."""
MOST_TEXTS = 200_000
"""Texts, the keys of objects among them."""
MOST_OBJECTS = 50_000
MOST_ARRAYS = 50_000
_MANY_TEXTS, _MANY_OBJECTS, _MANY_VALUES = 5_000, 1_000, 100_000


class Tally(NamedTuple):
    values: int
    texts: int
    objects: int
    arrays: int

    @property
    def excess(self) -> str:
        """What there is too much of, as "50,000 objects"; "" where all is within its limit."""
        for count, most, what in (
            (self.objects, MOST_OBJECTS, "objects"),
            (self.arrays, MOST_ARRAYS, "arrays"),
            (self.texts, MOST_TEXTS, "texts"),
            (self.values, MOST_VALUES, "values"),
        ):
            if count > most:
                return f"{most:,} {what}"
        return ""

    @property
    def many(self) -> bool:
        """Handling them takes long enough for every open stream to feel it."""
        return self.texts > _MANY_TEXTS or self.objects + self.arrays > _MANY_OBJECTS or self.values > _MANY_VALUES


def tally(body: bytes) -> Tally:
    """The tally of `body`. It counts what stands inside of texts too, unless that would be beyond a limit."""
    rough = Tally(body.count(b","), body.count(b'"') // 2, body.count(b"{"), body.count(b"["))
    if not rough.excess:
        return rough
    # Without escaped quotes, every second part between quotes is outside of texts.
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in body else body
    texts = plain.count(b'"') // 2
    if texts > MOST_TEXTS:
        return Tally(0, texts, 0, 0)
    outside = b"".join(plain.split(b'"')[::2])
    return Tally(outside.count(b","), texts, outside.count(b"{"), outside.count(b"["))
