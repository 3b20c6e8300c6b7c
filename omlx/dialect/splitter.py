"""The *splitter* of models that mark thinking and calls with tags: first perhaps thinking, then content and calls.

Text is held back only while it may still become a marker or a call. A call that turns out to be none is released as the
text it was. The beginning of a further call behind a whole one, where the output ends, is left out: nobody can use it,
and it would look like an answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal

from omlx.dialect.pieces import Piece, partial
from omlx.dialect.thinking import ThinkMarkers
from omlx.dialect.tools.cursor import Cursor, NeedMore, NotACall
from omlx.dialect.tools.format import ToolFormat
from omlx.dialect.tools.toolbox import Toolbox
from omlx.request import ToolCall

_No = Literal["no"]
_SMALL = 2048
"""Characters. A held-back text longer than this is not looked at again with every token."""


class _Found:
    """Calls, and where the text behind them begins."""

    def __init__(self, calls: list[ToolCall], end: int) -> None:
        self.calls = calls
        self.end = end


class TagSplitter:
    def __init__(
        self,
        think: ThinkMarkers | None,
        formats: Sequence[ToolFormat],
        toolbox: Toolbox,
        *,
        opens_thinking: bool = False,
    ) -> None:
        self._think = think
        self._toolbox = toolbox
        self._marked = [found for found in formats if not found.bare]
        self._bare = [found for found in formats if found.bare]
        self._wrappers = think.wrappers if think else ()
        self._openings = {opening for found in self._marked for opening in found.openings}
        stops = [*self._openings, *self._wrappers]
        self._stop = re.compile("|".join(map(re.escape, sorted(stops, key=len, reverse=True)))) if stops else None
        self._stops = stops
        closings = {closing for found in self._marked for closing in found.closings if len(closing) > 1}
        closings |= {think.closing} if think else set()
        self._closing = re.compile("|".join(map(re.escape, closings)) or r"(?!)")
        self._buffer = ""
        self._state: Literal["start", "thinking", "closed", "content"] = "start" if think else "content"
        if opens_thinking and think:
            self._state = "thinking"
        self._swallows = self._state == "thinking"
        """White space that comes next belongs to a marker."""
        self._answered = False
        """Something other than white space has been passed on as content, or a call was found."""
        self._called = self._behind_call = False
        """A call was found; and nothing but white space came since then."""
        self._looked_at = 0
        """Length of the buffer when a call in it was last found to be incomplete; 0: not waiting for one."""

    @property
    def inside_thinking(self) -> bool:
        return self._state == "thinking"

    def feed(self, text: str, *, final: bool = False) -> list[Piece]:
        self._buffer += text
        if not final and self._looked_at and not self._worth_a_look(len(text)):
            return []
        self._looked_at = 0
        pieces: list[Piece] = []
        while self._buffer and self._step(pieces, final):
            pass
        return pieces

    def _worth_a_look(self, added: int) -> bool:
        """A long call is read again when its closing marker may have arrived or it has grown by a tenth."""
        if len(self._buffer) < _SMALL or len(self._buffer) > self._looked_at * 1.1:
            return True
        return self._closing.search(self._buffer, len(self._buffer) - added - 32) is not None

    def _step(self, pieces: list[Piece], final: bool) -> bool:
        """Do what the buffer allows; False: nothing more without new text."""
        if self._swallows:
            self._buffer = self._buffer.lstrip()
            if not self._buffer:
                return False
            self._swallows = False
        if self._state == "start":
            return self._start(final)
        if self._state == "closed":
            return self._closed(final)
        return self._thinking(pieces, final) if self._state == "thinking" else self._content(pieces, final)

    def _start(self, final: bool) -> bool:
        """Is the first thing the opening of a thinking block?"""
        assert self._think is not None
        text = self._buffer.lstrip()
        if text.startswith(self._think.opening):
            self._buffer = text[len(self._think.opening) :]
            self._state, self._swallows = "thinking", True
        elif not final and self._think.opening.startswith(text):
            return False
        else:
            self._state = "content"
        return True

    # ------------------------------------------------------------ thinking
    def _thinking(self, pieces: list[Piece], final: bool) -> bool:
        assert self._think is not None
        closing = self._buffer.find(self._think.closing)
        place = self._next_opening(closing if closing >= 0 else None)
        if place is not None:
            # Some models call a tool without closing their thinking.
            return self._call_in_thinking(pieces, place, closing, final)
        if closing >= 0:
            self._emit(pieces, "thinking", closing)
            self._buffer = self._buffer[len(self._think.closing) :]
            self._state, self._swallows = "closed", True
            return True
        held = 0 if final else self._held([self._think.closing, *self._openings])
        self._emit(pieces, "thinking", len(self._buffer) - held)
        return False

    def _closed(self, final: bool) -> bool:
        """Is it closed once more? So does a model whose thinking a budget has ended, where it would have itself."""
        assert self._think is not None
        if self._buffer.startswith(self._think.closing):
            self._buffer = self._buffer[len(self._think.closing) :]
            self._swallows = True
        elif not final and self._think.closing.startswith(self._buffer):
            return False
        else:
            self._state = "content"
        return True

    def _next_opening(self, end: int | None) -> int | None:
        if not self._openings:
            return None
        places = (self._buffer.find(opening, 0, end) for opening in self._openings)
        return min((place for place in places if place >= 0), default=None)

    def _call_in_thinking(self, pieces: list[Piece], place: int, closing: int, final: bool) -> bool:
        region = self._buffer if closing < 0 else self._buffer[:closing]
        outcome = self._read(self._marked, region, place, final=final or closing >= 0)
        if isinstance(outcome, _Found):
            self._emit(pieces, "thinking", place)
            self._state = "content"
            return True
        if outcome is None:
            self._emit(pieces, "thinking", place)
            self._looked_at = len(self._buffer)
            return False
        self._emit(pieces, "thinking", place + 1)
        return True

    # ------------------------------------------------------------ content and calls
    def _content(self, pieces: list[Piece], final: bool) -> bool:
        if not self._answered and self._bare:
            decided = self._bare_call(pieces, final)
            if decided is not None:
                return decided
        stop = self._stop.search(self._buffer) if self._stop else None
        held = self._held(self._stops)
        if final:
            if stop is None and self._behind_call and not self._buffer[: len(self._buffer) - held].strip():
                self._buffer = self._buffer[: len(self._buffer) - held]
            held = 0
        if stop is None or (held and len(self._buffer) - held <= stop.start()):
            self._emit_text(pieces, len(self._buffer) - held, keep_blank=bool(self._stop) and not final)
            return False
        if stop.group() in self._wrappers:
            self._emit_text(pieces, stop.start(), keep_blank=False)
            self._buffer = self._buffer[len(stop.group()) :]
            return True
        return self._marked_call(pieces, stop, final)

    def _marked_call(self, pieces: list[Piece], stop: re.Match[str], final: bool) -> bool:
        # White space in front of a call goes with it, if it is one.
        self._emit_text(pieces, stop.start(), keep_blank=True)
        place = len(self._buffer) - len(self._buffer.lstrip())
        outcome = self._read(self._marked, self._buffer, place, final=final)
        if outcome is None:
            self._looked_at = len(self._buffer)
            return False
        if isinstance(outcome, _Found):
            self._take(pieces, outcome)
        elif final and self._called and self._read(self._marked, self._buffer, place, final=False) is None:
            self._buffer = self._buffer[:place]
        else:
            self._emit_text(pieces, place + len(stop.group()), keep_blank=False)
        return True

    def _bare_call(self, pieces: list[Piece], final: bool) -> bool | None:
        """A call at the very beginning that nothing marks. None: there is none, go on."""
        place = len(self._buffer) - len(self._buffer.lstrip())
        text = self._buffer[place:]
        if not text:
            return None
        outcome = self._read(self._bare, self._buffer, place, final=final)
        if outcome is None:
            self._looked_at = len(self._buffer)
            return False
        if isinstance(outcome, _Found):
            self._take(pieces, outcome)
            return True
        return None

    def _take(self, pieces: list[Piece], found: _Found) -> None:
        pieces.extend(Piece("tool_call", call=call) for call in found.calls)
        self._buffer = self._buffer[found.end :]
        self._answered = self._swallows = self._called = self._behind_call = True

    def _read(self, formats: Sequence[ToolFormat], text: str, place: int, *, final: bool) -> _Found | _No | None:
        """The first format that reads a call at `place`; None: more text decides."""
        for known in formats:
            openings = known.openings or [f"{name}\n" for name in self._toolbox.names]
            if not any(text.startswith(opening, place) for opening in openings):
                if not final and any(opening.startswith(text[place : place + len(opening)]) for opening in openings):
                    return None
                continue
            cursor = Cursor(text, place, final=final)
            try:
                calls = known.read(cursor, self._toolbox)
            except NeedMore:
                return None
            except NotACall:
                continue
            behind = len(text) if final and self._goes_on(known, text, place) else cursor.position
            return _Found(calls, behind)
        return "no"

    def _goes_on(self, known: ToolFormat, text: str, place: int) -> bool:
        """More text could have made more of this call, or another one, of what stands behind it."""
        try:
            known.read(Cursor(text, place, final=False), self._toolbox)
        except NeedMore:
            return True
        return False

    # ------------------------------------------------------------ passing on
    def _held(self, markers: Iterable[str]) -> int:
        return max((partial(self._buffer, marker) for marker in markers), default=0)

    def _emit_text(self, pieces: list[Piece], size: int, *, keep_blank: bool) -> None:
        """Pass `size` characters on as content, the white space at their end only if it cannot belong to a call."""
        text = self._buffer[:size]
        if keep_blank:
            size = len(text.rstrip())
        if self._buffer[:size].strip():
            self._answered, self._behind_call = True, False
        self._emit(pieces, "content", size)

    def _emit(self, pieces: list[Piece], kind: Literal["content", "thinking"], size: int) -> None:
        if size:
            pieces.append(Piece(kind, self._buffer[:size]))
        self._buffer = self._buffer[size:]
