"""A *cursor* reads a tool call out of text that is still growing.

Every read either succeeds, or says that it cannot be a call (`NotACall`), or that more text decides it (`NeedMore`).
Once a read has succeeded or failed, more text never changes that: calls do not depend on where a stream is cut.
"""

from __future__ import annotations

import json
import math
import re
from functools import lru_cache
from typing import Any

from omlx.prompting.segments import partial


class NotACall(Exception):
    """The text is no tool call: it is content."""


class NeedMore(Exception):
    """The text may become a tool call."""


MAX_NESTING = 100
_NAME = re.compile(r"[\w.:/-]+")
_HEAD = re.compile(r"[^<>\n]*")
_BLANK = re.compile(r"\s*")


@lru_cache(100)
def _closing_tag(closing: str) -> re.Pattern[str]:
    return re.compile(re.escape(closing[:-1]) + r"\s*>" if closing.startswith("</") else re.escape(closing))


_STRAY_TAG = re.compile(r"\s*</[\w:｜]{1,40}>")
_STRAY_BEGUN = re.compile(r"\s*(?:<(?:/[\w:｜]{0,40})?)?$")


class Cursor:
    """`final`: no more text will come, so that what is undecided is no call. `ended`: because the model ended its
    turn, so that closing marks that are missing there were left out."""

    def __init__(self, text: str, position: int, *, final: bool, ended: bool = False) -> None:
        self.text = text
        self.position = position
        self.kept: list[Any] = []
        """Calls that are whole, whatever becomes of the rest of the block."""
        self.kept_end = position
        """Where the text behind them begins."""
        self.thought = ""
        """What the model says about its calls within them."""
        self.cut = False
        """The output ended where more was expected."""
        self._final = final
        self._ended = final and ended

    def keep(self, call: Any) -> None:
        """Add a whole call that ends here: it counts even if the block turns out to be cut off or malformed."""
        self.kept.append(call)
        self.kept_end = self.position

    def undecided(self) -> NeedMore | NotACall:
        """What to raise where the text ends too early."""
        self.cut = True
        return NotACall() if self._final else NeedMore()

    @property
    def at_end(self) -> bool:
        return self.position >= len(self.text)

    def over(self) -> bool:
        """Whether the model ended its turn here."""
        if self.at_end and not self._final:
            raise NeedMore
        self.cut = self.cut or self.at_end
        return self.at_end and self._ended

    def to_end(self, *closings: str) -> str | None:
        """The text up to where the model ended its turn, without the beginning of a closing mark; None: it did not."""
        if not self._ended:
            return None
        text = self.text[self.position :]
        self.position, self.cut = len(self.text), True
        return text[: len(text) - max(partial(text, closing) for closing in closings)]

    def maybe(self, literal: str) -> bool:
        """Step over `literal` if it is next."""
        if self.text.startswith(literal, self.position):
            self.position += len(literal)
            return True
        if literal.startswith("</") and self.text.startswith(literal[:-1], self.position):
            # White space in front of the `>`.
            match = _BLANK.match(self.text, self.position + len(literal) - 1)
            assert match is not None
            if self.text.startswith(">", match.end()):
                self.position = match.end() + 1
                return True
            if match.end() == len(self.text) and not self._final:
                raise NeedMore
        rest = self.text[self.position : self.position + len(literal)]
        if literal.startswith(rest):
            if not self._final:
                raise NeedMore
            self.cut = self.cut or bool(rest)
        return False

    def literal(self, literal: str) -> None:
        if not self.maybe(literal):
            raise self.undecided() if self.at_end else NotACall()

    def one_of(self, *literals: str) -> str:
        """Step over whichever of the literals is next. None may begin another."""
        waiting = False
        for literal in literals:
            try:
                if self.maybe(literal):
                    return literal
            except NeedMore:
                waiting = True
        if waiting:
            raise NeedMore
        raise self.undecided() if self.at_end else NotACall()

    def blank(self) -> None:
        match = _BLANK.match(self.text, self.position)
        assert match is not None
        self.position = match.end()

    def until(self, marker: str, *, at_most: int | None = None) -> str:
        """The text in front of `marker`, which is stepped over.

        `at_most`: characters that text may have; then it is a name, in which no other marker begins.
        """
        found = self.text.find(marker, self.position)
        if at_most is not None:
            other = self.text.find("<", self.position, found if found >= 0 else len(self.text))
            if other >= 0 and (found >= 0 or not marker.startswith(self.text[other:])):
                raise NotACall
        if at_most is not None and (found if found >= 0 else len(self.text)) - self.position > at_most:
            raise NotACall
        if found < 0:
            raise self.undecided()
        text = self.text[self.position : found]
        self.position = found + len(marker)
        return text

    def head(self) -> str:
        """The rest of an opening tag, up to and with its `>`; a line break or another tag ends it, too."""
        match = _HEAD.match(self.text, self.position)
        assert match is not None
        if match.end() - self.position > 300:
            raise NotACall
        if match.end() == len(self.text):
            raise self.undecided()
        self.position = match.end() + (self.text[match.end()] == ">")
        return match.group()

    @property
    def glued(self) -> bool:
        """The head just read was not closed, and something else follows on its line."""
        return self.text[self.position - 1] != ">" and self.text.startswith("<", self.position)

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

    def ends_with(self, complete: bool, closing: str) -> bool:
        """Whether the output ends here, perhaps within `closing`, with a call that lacks nothing else.

        `complete`: all arguments that it needs are there. Where the model ended its turn it has those that it wants.
        """
        if not (complete or self._ended) or not closing.startswith(self.text[self.position :]):
            return False
        self.wait()
        self.position = len(self.text)
        return True

    def name(self) -> str:
        """An identifier; what follows it must have arrived, to know that it is whole."""
        match = _NAME.match(self.text, self.position)
        if match is None:
            raise self.undecided() if self.at_end else NotACall()
        if match.end() == len(self.text) and not self._final:
            raise NeedMore
        self.position = match.end()
        return match.group()

    def next_is(self, *literals: str) -> str:
        """Whichever of the literals is next, not stepped over; "" for none of them."""
        start = self.position
        try:
            return next((literal for literal in literals if self.maybe(literal)), "")
        finally:
            self.position = start

    def stray_tags(self, *expected: str) -> None:
        """Step over closing tags that nothing opened, up to white space in front of one of the `expected` texts."""
        while True:
            start = self.position
            self.blank()
            if self.next_is(*expected):
                return
            self.position = start
            tag = _STRAY_TAG.match(self.text, start)
            if tag is None:
                if not self._final and _STRAY_BEGUN.match(self.text, start):
                    raise NeedMore
                return
            self.position = tag.end()

    def value(self, closing: str, sibling: re.Pattern[str], end: re.Pattern[str]) -> str:
        """The text of an element up to `closing`, which is stepped over.

        Where `closing` was left out, the text ends where the next element begins (`sibling`), or in front of that where
        the call ends (`end`): neither is stepped over.
        """
        start = self.position
        closed = _closing_tag(closing).search(self.text, start)
        next_element = sibling.search(self.text, start, closed.start() if closed else len(self.text))
        if next_element is None and closed:
            self.position = closed.end()
            return self.text[start : closed.start()]
        if next_element is None and not self._final:
            raise NeedMore
        stop = end.search(self.text, start, next_element.start() if next_element else len(self.text)) or next_element
        if stop is not None:
            self.position = stop.start()
            return self.text[start : stop.start()]
        rest = self.to_end(closing)
        if rest is None:
            raise self.undecided()
        return rest


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
