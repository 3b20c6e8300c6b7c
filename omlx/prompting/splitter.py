"""The *splitter* of models that mark thinking and calls with tags: first perhaps thinking, then content and calls.

Text is held back only while it may still become a marker or a call. A call that turns out to be none is released as
the text it was. The beginning of a further call behind a whole one, where the output ends, is left out: nobody can
use it, and it would look like an answer. So are closing markers that stand alone behind a call.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Literal

from omlx.messages.request import ToolCall
from omlx.prompting.marks import Marks
from omlx.prompting.segments import Segment
from omlx.prompting.thinking import ThinkMarkers
from omlx.prompting.tools.callreader import CallReader, Found
from omlx.prompting.tools.format import ToolFormat
from omlx.prompting.tools.offered import OfferedTools

_SMALL = 2048
"""Characters. A held-back text longer than this is not looked at again with every token."""
_LONGEST_MARKER = 40
"""Characters."""
_TALK = 400
"""Characters. With more text than this behind it, a call in thinking is part of the thinking."""
_LATER = re.compile(r"\n[ \t]*(?=\{|\[\s*\{|```(?:json|tool_call)?\s*[\[{])")
"""Where a call that nothing marks may begin behind text."""
_LATER_BEGUN = re.compile(r"\n[ \t]*(?:\[\s*|`{1,3}[a-z_]{0,9}\s*)?\Z")
_JSON_CALLS = ('{"', '[{"')
"""What a call that nothing marks begins with."""
_QUOTES = frozenset(" \t`'\"(“‘«「")
"""Characters in front of a marker that is spoken of."""


class TagSplitter:
    def __init__(
        self,
        think: ThinkMarkers | None,
        formats: Sequence[ToolFormat],
        offered_tools: OfferedTools,
        *,
        opens_thinking: bool = False,
        answer: tuple[str, str] | None = None,
        strays: Collection[str] = (),
    ) -> None:
        """`answer`: tags around the whole answer, which can stand in its text as well. `strays`: the family's tokens
        that are no text, though no tools were offered."""
        self._think = think
        self._read = CallReader(formats, offered_tools)
        self._marks = Marks(think, self._read.marked, answer, strays)
        self._buffer = ""
        self._ended = False
        self._state: Literal["start", "thinking", "closed", "content"] = "start" if think else "content"
        self._opened = opens_thinking and think is not None
        """Thinking has just been opened: the marker may be repeated."""
        if self._opened:
            self._state = "thinking"
        self._swallows = self._state == "thinking"
        """White space that comes next belongs to a marker."""
        self._answered = False
        """Something other than white space has been passed on as content, or a call was found."""
        self._called = self._behind_call = False
        """A call was found; and nothing but white space came since then."""
        self._thought = opens_thinking
        """A thinking block was opened."""
        self._quoted = False
        """The opening marker of thinking was passed on as text."""
        self._tail = ""
        """The end of the text that was passed on last."""
        self._wrapped = False
        """The answer stands between markers of its own, of which the first was found."""
        self._looked_at = 0
        """Length of the buffer when a call in it was last found to be incomplete; 0: not waiting for one."""

    @property
    def inside_thinking(self) -> bool:
        return self._state == "thinking"

    def feed(self, text: str, *, final: bool = False, ended: bool = False) -> list[Segment]:
        """`final`: no more text will come; `ended`: because the model ended its turn."""
        self._buffer += text
        self._ended = final and ended
        if not final and self._looked_at and not self._worth_a_look(len(text)):
            return []
        self._looked_at = 0
        segments: list[Segment] = []
        while self._buffer and self._step(segments, final):
            pass
        return segments

    def _worth_a_look(self, added: int) -> bool:
        """A long call is read again when its closing marker may have arrived or it has grown by a tenth."""
        if len(self._buffer) < _SMALL or len(self._buffer) > self._looked_at * 1.1:
            return True
        return self._marks.closes(self._buffer, len(self._buffer) - added - 32)

    def _step(self, segments: list[Segment], final: bool) -> bool:
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
        return self._thinking(segments, final) if self._state == "thinking" else self._content(segments, final)

    def _start(self, final: bool) -> bool:
        """Is the first thing the opening of a thinking block?"""
        assert self._think is not None
        text = self._buffer.lstrip()
        opening = self._think.opening.rstrip()
        if text.startswith(opening):
            self._open(text[len(opening) :])
        elif not final and opening.startswith(text):
            return False
        else:
            self._state = "content"
        return True

    # ------------------------------------------------------------ thinking
    def _open(self, behind: str) -> None:
        self._thought = True
        self._buffer, self._state = behind, "thinking"
        self._swallows = self._opened = True

    def _thinking(self, segments: list[Segment], final: bool) -> bool:
        assert self._think is not None
        if self._opened:
            opening = self._think.opening.rstrip()
            if self._buffer.startswith(opening):
                self._open(self._buffer[len(opening) :])
                return True
            if not final and opening.startswith(self._buffer):
                return False
            self._opened = False
        closing = self._buffer.find(self._think.closing)
        place = self._marks.first_opening(self._buffer, closing if closing >= 0 else None)
        if place is not None:
            # Some models call a tool without closing their thinking.
            return self._call_in_thinking(segments, place, closing, final)
        if closing >= 0:
            self._emit(segments, "thinking", closing)
            self._buffer = self._buffer[len(self._think.closing) :]
            self._state, self._swallows = "closed", True
            return True
        held = 0 if final else self._marks.held(self._buffer, self._think.closing)
        self._emit(segments, "thinking", len(self._buffer) - held)
        return False

    def _closed(self, final: bool) -> bool:
        """Is it closed once more, or opened again?

        So does a model whose thinking a budget has ended, where it would have itself.
        """
        assert self._think is not None
        opening, closing = self._think.opening.rstrip(), self._think.closing
        if self._buffer.startswith(closing):
            self._buffer = self._buffer[len(closing) :]
            self._swallows = True
        elif self._buffer.startswith(opening):
            self._open(self._buffer[len(opening) :])
        elif not final and (closing.startswith(self._buffer) or opening.startswith(self._buffer)):
            return False
        else:
            self._state = "content"
        return True

    def _call_in_thinking(self, segments: list[Segment], place: int, closing: int, final: bool) -> bool:
        """Calls that end the output or the thinking are calls; with thinking behind them, they are only quoted."""
        region = self._buffer if closing < 0 else self._buffer[:closing]
        ended = final or closing >= 0
        left_off = self._ended and closing < 0
        calls: list[ToolCall] = []
        end = place
        outcome = self._read(region, place, final=ended, ended=left_off)
        while isinstance(outcome, Found):
            calls += outcome.calls
            end = self._marks.behind_orphans(region, outcome.end)
            if not self._marks.opens(region, end):
                break
            outcome = self._read(region, end, final=ended, ended=left_off)
        if outcome is not None and not calls:
            self._emit(segments, "thinking", place + 1)
            return True
        behind = region[end:].strip() if outcome is not None else ""
        if behind and (closing >= 0 or len(behind) > _TALK):
            self._emit(segments, "thinking", end)
            return True
        if outcome is None or not ended:
            self._emit(segments, "thinking", place)
            self._looked_at = len(self._buffer)
            return False
        self._state = "content"
        self._take(segments, Found(calls, len(region) if outcome == "cut" else end), place)
        return True

    # ------------------------------------------------------------ content and calls
    def _content(self, segments: list[Segment], final: bool) -> bool:
        if self._behind_call and not self._drop_orphans(final):
            return False
        if not self._answered:
            decided = self._begin_answer(segments, final)
            if decided is not None:
                return decided
        stop = self._marks.stop(self._buffer)
        held = self._marks.held(self._buffer)
        if final:
            if stop is None and self._behind_call and not self._buffer[: len(self._buffer) - held].strip():
                self._buffer = self._buffer[: len(self._buffer) - held]
            held = 0
        later = self._later_call(segments, stop, final)
        if later is not None:
            return later
        if stop is None or (held and len(self._buffer) - held <= stop.start()):
            self._emit_text(segments, len(self._buffer) - held, keep_blank=self._marks.hold_blank and not final)
            return False
        mark = stop.group()
        if mark == self._marks.answer_closing:
            return self._end_answer(segments, stop, final)
        if mark == self._marks.lone_closing:
            return self._lone(segments, stop)
        if mark not in self._marks.openings:
            self._emit_text(segments, stop.start(), keep_blank=mark == self._marks.reopening)
            self._buffer = self._buffer.lstrip() if mark == self._marks.reopening else self._buffer
            self._buffer = self._buffer[len(mark) :]
            if mark == self._marks.reopening:
                self._open(self._buffer)
            return True
        return self._marked_call(segments, stop, final)

    def _later_call(self, segments: list[Segment], stop: re.Match[str] | None, final: bool) -> bool | None:
        """A call in plain JSON on a line of its own behind text: it is one only where it ends the output.

        None: there is none, go on.
        """
        if not self._read.bare or self._called:
            return None
        end = stop.start() if stop else len(self._buffer)
        first = 0 if self._answered else len(self._buffer) - len(self._buffer.lstrip())
        line = _LATER.search(self._buffer, first, end)
        if line is None:
            begun = None if final or stop else _LATER_BEGUN.search(self._buffer, first)
            if begun is None:
                return None
            self._emit_text(segments, begun.start(), keep_blank=True)
            return False
        self._emit_text(segments, line.start(), keep_blank=True)
        place = len(self._buffer) - len(self._buffer.lstrip())
        outcome = self._read(self._buffer, place, final=final, ended=self._ended, start=True)
        if isinstance(outcome, Found):
            behind = self._buffer[self._marks.behind_orphans(self._buffer, outcome.end) :]
            if not behind or self._marks.may_be_orphan(behind):
                if final:
                    self._take(segments, outcome)
                    return True
                outcome = None
        if outcome is None:
            self._looked_at = len(self._buffer)
            return False
        self._emit_text(segments, place + 1, keep_blank=False)
        return True

    def _lone(self, segments: list[Segment], stop: re.Match[str]) -> bool:
        """A closing marker of thinking that nothing opened. Where it is spoken of, a space or quote precedes it."""
        assert self._think is not None
        place = stop.start()
        before = self._buffer[place - 1] if place else self._tail[-1:]
        if (
            self._thought
            or self._quoted
            or self._think.opening in self._tail + self._buffer[:place]
            or before in _QUOTES
        ):
            self._emit_text(segments, stop.end(), keep_blank=False)
        else:
            self._emit_text(segments, place, keep_blank=False)
            self._buffer = self._buffer[len(stop.group()) :]
            self._marks.drop(self._think.opening)
            self._answered, self._wrapped = False, False
        return True

    def _begin_answer(self, segments: list[Segment], final: bool) -> bool | None:
        """Markers around the whole answer, and calls that nothing marks. None: there are none, go on."""
        text = self._buffer.lstrip()
        if self._marks.answer_opening:
            if text.startswith(self._marks.answer_opening):
                self._buffer = text[len(self._marks.answer_opening) :]
                self._wrapped = self._swallows = True
                return True
            if not final and self._marks.answer_opening.startswith(text):
                return False
        closer = next((closer for closer in self._marks.closers if text.startswith(closer)), "")
        if closer and closer not in self._marks.openings:
            # Output does not begin with the end of something.
            self._buffer = text[len(closer) :]
            return True
        if text and not final and any(closer.startswith(text) for closer in self._marks.closers):
            return False
        if not self._read.bare or not text:
            return None
        place = len(self._buffer) - len(text)
        outcome = self._read(self._buffer, place, final=final, ended=self._ended, start=True)
        if outcome is None:
            self._looked_at = len(self._buffer)
            return False
        if isinstance(outcome, Found):
            self._take(segments, outcome)
            return True
        return None

    def _end_answer(self, segments: list[Segment], stop: re.Match[str], final: bool) -> bool:
        """The closing marker of the answer is one only where nothing but calls follows."""
        behind = self._buffer[stop.end() :].lstrip()
        expected = (*self._marks.openings, self._marks.answer_closing, *(_JSON_CALLS if self._read.bare else ()))
        marked = any(behind.startswith(opening) for opening in expected)
        undecided = not behind or any(opening.startswith(behind) for opening in expected)
        wrapped = self._wrapped or self._thought
        if wrapped and not final and undecided:
            self._emit_text(segments, stop.start(), keep_blank=True)
            return False
        if wrapped and (marked or not behind):
            self._emit_text(segments, stop.start(), keep_blank=True)
            self._buffer = behind
            return True
        self._emit_text(segments, stop.end(), keep_blank=False)
        return True

    def _marked_call(self, segments: list[Segment], stop: re.Match[str], final: bool) -> bool:
        # White space in front of a call goes with it, if it is one.
        self._emit_text(segments, stop.start(), keep_blank=True)
        place = len(self._buffer) - len(self._buffer.lstrip())
        outcome = self._read(self._buffer, place, final=final, ended=self._ended)
        second = place + len(stop.group())
        while outcome == "no":
            # The opening may be doubled.
            behind = self._buffer[second:].lstrip()
            second = len(self._buffer) - len(behind)
            opening = self._marks.opens(behind)
            if not opening:
                undecided = not final and self._marks.may_open(behind)
                outcome = None if undecided else outcome
                break
            again = self._read(self._buffer, second, final=final, ended=self._ended)
            outcome = "no" if again == "cut" else again
            second += len(opening)
        if outcome is None:
            self._looked_at = len(self._buffer)
            return False
        if isinstance(outcome, Found):
            self._take(segments, outcome)
        elif outcome == "cut" and self._called:
            self._buffer = self._buffer[:place]
        elif self._behind_call and stop.group() in self._marks.orphans:
            self._buffer = self._buffer[place + len(stop.group()) :]
        else:
            self._emit_text(segments, place + len(stop.group()), keep_blank=False)
        return True

    def _take(self, segments: list[Segment], mark: Found, thought: int = 0) -> None:
        """Pass calls on. `thought`: so many characters in front of them are thinking."""
        if thought:
            segments.append(Segment("thinking", self._buffer[:thought]))
        if mark.thought:
            segments.append(Segment("thinking", mark.thought))
        segments.extend(Segment("tool_call", call=call) for call in mark.calls)
        self._buffer = self._buffer[mark.end :]
        if mark.calls:
            self._answered = self._swallows = self._called = self._behind_call = True

    def _drop_orphans(self, final: bool) -> bool:
        """Take what is no text from the front of the buffer. False: more text decides what is there."""
        self._buffer = self._buffer[self._marks.behind_orphans(self._buffer, 0) :]
        if self._buffer and self._marks.may_be_orphan(self._buffer):
            self._buffer = "" if final else self._buffer
            return False
        return bool(self._buffer)

    # ------------------------------------------------------------ passing on
    def _emit_text(self, segments: list[Segment], size: int, *, keep_blank: bool) -> None:
        """Pass `size` characters on as content, the white space at their end only if it cannot belong to a call."""
        text = self._buffer[:size]
        if keep_blank:
            size = len(text.rstrip())
        if self._buffer[:size].strip():
            self._answered, self._behind_call = True, False
        self._emit(segments, "content", size)

    def _emit(self, segments: list[Segment], kind: Literal["content", "thinking"], size: int) -> None:
        if size:
            segments.append(Segment(kind, self._buffer[:size]))
            self._tail += self._buffer[:size]
            if self._think and not self._quoted:
                self._quoted = self._think.opening in self._tail
            self._tail = self._tail[-_LONGEST_MARKER:]
        self._buffer = self._buffer[size:]
