"""*Marks* are the texts that mean something in an output with tags: what opens calls and thinking, what closes them,
and what is no text wherever it stands. They are found from the model's thinking markers and tool formats.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from omlx.prompting.segments import partial
from omlx.prompting.thinking import ThinkMarkers
from omlx.prompting.tools.format import ToolFormat

_TOKEN = re.compile(r"<[|｜].*[|｜]>|<\|.*>|<.*\|>|\[/?[A-Z_]+\]")
"""What a marker looks like that cannot be text."""


class Marks:
    def __init__(
        self,
        think: ThinkMarkers | None,
        formats: Sequence[ToolFormat],
        answer: tuple[str, str] | None,
        strays: Collection[str],
    ) -> None:
        """`formats`: those whose calls are marked; `answer`, `strays`: see `TagSplitter`."""
        self.openings = {opening for known in formats for opening in known.openings}
        """Of calls."""
        closings = {closing for known in formats for closing in known.closings if len(closing) > 3}
        strays = {*strays, *(stray for known in formats for stray in known.strays)}
        self.closers = frozenset(closings)
        """Of calls."""
        self.orphans = closings | strays | {orphan for known in formats for orphan in known.orphans}
        """No text where they stand alone behind a call."""
        self.orphans |= {think.closing} if think else set()
        self.dropped = strays - self.openings
        """No text anywhere."""
        self.reopening = ""
        """Opens thinking in the middle of the answer; "" where it may be text."""
        if think:
            self.dropped |= {*think.wrappers}
            if _TOKEN.fullmatch(think.closing):
                self.dropped.add(think.closing)
            if _TOKEN.fullmatch(think.opening.rstrip()) or think.opening.startswith("<|"):
                self.reopening = think.opening.rstrip()
        self.answer_opening, self.answer_closing = answer or ("", "")
        self.lone_closing = think.closing if think and think.closing not in self.dropped else ""
        """Ends thinking whose opening marker is missing: it is no text where it can be told."""
        self._set_stops()
        closings |= {think.closing} if think else set()
        self._closing = re.compile("|".join(map(re.escape, closings)) or r"(?!)")

    def _set_stops(self) -> None:
        self._stops = {*self.openings, *self.dropped, self.reopening, self.answer_closing, self.lone_closing} - {""}
        pattern = "|".join(map(re.escape, sorted(self._stops, key=len, reverse=True)))
        self._stop = re.compile(pattern) if pattern else None
        self.hold_blank = bool(self._stops - {self.lone_closing} - self.dropped)
        """White space may belong to a mark that follows it."""

    def drop(self, mark: str) -> None:
        """From now on it is no text anywhere."""
        self.dropped.add(mark)
        self._set_stops()

    def stop(self, text: str) -> re.Match[str] | None:
        """The first mark in content."""
        return self._stop.search(text) if self._stop else None

    def held(self, text: str, *others: str) -> int:
        """How many characters at the end may become a mark of content; with `others`, one of these or a call."""
        return _held(text, (*others, *self.openings) if others else self._stops)

    def closes(self, text: str, start: int) -> bool:
        """Something is closed from `start` on."""
        return self._closing.search(text, start) is not None

    def first_opening(self, text: str, end: int | None) -> int | None:
        """Where the first call may begin."""
        places = (text.find(opening, 0, end) for opening in self.openings)
        return min((place for place in places if place >= 0), default=None)

    def opens(self, text: str, place: int = 0) -> str:
        """The opening of a call that stands at `place`."""
        return next((opening for opening in self.openings if text.startswith(opening, place)), "")

    def may_open(self, text: str) -> bool:
        """The text may become the opening of a call."""
        return any(opening.startswith(text) for opening in self.openings)

    def may_be_orphan(self, text: str) -> bool:
        return any(orphan.startswith(text) for orphan in self.orphans)

    def behind_orphans(self, text: str, place: int) -> int:
        """Where the text behind closing marks that stand alone begins."""
        while True:
            place += len(text[place:]) - len(text[place:].lstrip())
            orphan = next((orphan for orphan in self.orphans if text.startswith(orphan, place)), "")
            if not orphan or orphan in self.openings:
                return place
            place += len(orphan)


def _held(text: str, marks: Iterable[str]) -> int:
    return max((partial(text, mark) for mark in marks), default=0)
