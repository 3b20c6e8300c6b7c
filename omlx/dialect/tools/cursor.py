"""A *cursor* reads a tool call out of text that is still growing.

Every read either succeeds, or says that it cannot be a call (`NotACall`), or that more text decides it (`NeedMore`).
Once a read has succeeded or failed, more text never changes that: calls do not depend on where a stream is cut.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any


class NotACall(Exception):
    """The text is no tool call: it is content."""


class NeedMore(Exception):
    """The text may become a tool call."""


MAX_NESTING = 100
_JSON_TOKEN = re.compile(r'[^"{}\[\]]+|"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)
_NAME = re.compile(r"[\w.:/-]+")
_BLANK = re.compile(r"\s*")


class Cursor:
    """`final`: no more text will come, so that what is undecided is no call."""

    def __init__(self, text: str, position: int, *, final: bool) -> None:
        self.text = text
        self.position = position
        self._final = final

    def undecided(self) -> NeedMore | NotACall:
        """What to raise where the text ends too early."""
        return NotACall() if self._final else NeedMore()

    @property
    def at_end(self) -> bool:
        return self.position >= len(self.text)

    def maybe(self, literal: str) -> bool:
        """Step over `literal` if it is next."""
        if self.text.startswith(literal, self.position):
            self.position += len(literal)
            return True
        rest = self.text[self.position : self.position + len(literal)]
        if not self._final and literal.startswith(rest):
            raise NeedMore
        return False

    def literal(self, literal: str) -> None:
        if not self.maybe(literal):
            raise NotACall

    def one_of(self, *literals: str) -> str:
        """Step over whichever of the literals is next. None may begin another."""
        waiting = False
        for literal in literals:
            try:
                if self.maybe(literal):
                    return literal
            except NeedMore:
                waiting = True
        raise NeedMore if waiting else NotACall

    def blank(self) -> None:
        match = _BLANK.match(self.text, self.position)
        assert match is not None
        self.position = match.end()

    def until(self, marker: str, *, at_most: int | None = None) -> str:
        """The text in front of `marker`, which is stepped over. `at_most`: characters that text may have."""
        found = self.text.find(marker, self.position)
        if at_most is not None and (found if found >= 0 else len(self.text)) - self.position > at_most:
            raise NotACall
        if found < 0:
            raise self.undecided()
        text = self.text[self.position : found]
        self.position = found + len(marker)
        return text

    def rest(self) -> str:
        """All text to the end of the output."""
        if not self._final:
            raise NeedMore
        text = self.text[self.position :]
        self.position = len(self.text)
        return text

    def wait(self) -> None:
        """Read no further here unless the output has ended."""
        if not self._final:
            raise NeedMore

    def name(self) -> str:
        """An identifier; what follows it must have arrived, to know that it is whole."""
        match = _NAME.match(self.text, self.position)
        if match is None:
            raise self.undecided() if self.at_end else NotACall()
        if match.end() == len(self.text) and not self._final:
            raise NeedMore
        self.position = match.end()
        return match.group()

    def json(self) -> Any:
        """A JSON object or array."""
        start = end = self.position
        if self.at_end:
            raise self.undecided()
        if self.text[start] not in "{[":
            raise NotACall
        depth = 0
        while True:
            match = _JSON_TOKEN.match(self.text, end)
            if match is None:
                # Within a string, or at the end.
                raise self.undecided()
            end = match.end()
            depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(match.group(), 0)
            if depth > MAX_NESTING:
                raise NotACall
            if depth == 0:
                break
        self.position = end
        return load_json(self.text[start:end])


def load_json(text: str) -> Any:
    """The JSON value, fit for a message frame. Raises NotACall.

    Control characters in strings are taken (small models write line breaks as they are); NaN and infinite numbers are
    not, since nothing that holds them could be sent on.
    """
    try:
        value = json.loads(text, strict=False, parse_constant=_refuse, parse_int=parse_int, parse_float=parse_float)
    except (ValueError, RecursionError):
        raise NotACall from None
    return whole_characters(value) if "\\u" in text else value


def _refuse(text: str) -> Any:
    raise ValueError(text)


def parse_int(text: str) -> int | float:
    number = int(text)
    return number if -(1 << 63) <= number < 1 << 64 else parse_float(text)


def parse_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def whole_characters(value: Any) -> Any:
    """The value with halves of surrogate pairs replaced: they cannot be encoded."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [whole_characters(item) for item in value]
    if isinstance(value, dict):
        return {whole_characters(key): whole_characters(item) for key, item in value.items()}
    return value
