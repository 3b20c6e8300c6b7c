"""Muse Glimmer's output: messages, each with a *recipient* in its header.

` to=self<|message|>…<|eom|><|start|>assistant to=user<|message|>…<|eot|>`: what goes to `self` is thinking, to
`user` content; a message to a tool holds its call in the family's tags. The prompt ends with `<|start|>assistant`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from omlx.prompting.segments import Segment, partial
from omlx.prompting.splitter import TagSplitter
from omlx.prompting.thinking import ThinkMarkers
from omlx.prompting.tools.format import ToolFormat
from omlx.prompting.tools.offered import OfferedTools

_MESSAGE = "<|message|>"
THOUGHT, ANSWER = " to=self<|message|>", " to=user<|message|>"
END = "<|eom|>"
NEXT_MESSAGE = "<|eom|><|start|>assistant"
"""What ends a message and begins the next."""
_ENDS = ("<|eom|>", "<|eot|>", "<|start|>")
_MARK = re.compile("|".join(map(re.escape, (*_ENDS, _MESSAGE))))
_HEADER = re.compile(r"\s*(?:<\|start\|>)?\s*(?:assistant)?\s*(?:to=([^\s<]+))?\s*")
_BEGINNINGS = ("<|start|>", "assistant", "to=", _MESSAGE)
_KNOWN = ("self", "user")
_SELF = ThinkMarkers("<|self|>", "<|/self|>")
"""What thinking stands between for the splitter of the messages' texts; the model never writes it."""


class RecipientSplitter:
    """Follows one generation. Text that is no header at the start is content (a continued answer)."""

    def __init__(
        self, formats: Sequence[ToolFormat], offered_tools: OfferedTools, *, opens_thinking: bool = False
    ) -> None:
        self._texts = TagSplitter(_SELF, formats, offered_tools, opens_thinking=opens_thinking)
        self._buffer = ""
        self._in_header = not opens_thinking
        self._thinks = opens_thinking

    @property
    def inside_thinking(self) -> bool:
        return self._thinks

    def feed(self, text: str, *, final: bool = False, ended: bool = False) -> list[Segment]:
        self._buffer += text
        segments: list[Segment] = []
        while self._header(segments, final) if self._in_header else self._body(segments, final):
            pass
        return [*segments, *self._texts.feed("", final=True, ended=ended)] if final else segments

    def _header(self, segments: list[Segment], final: bool) -> bool:
        """Step over a header; False: nothing more without new text."""
        match = _HEADER.match(self._buffer)
        assert match is not None
        recipient = match.group(1)
        rest = self._buffer[match.end() :]
        if not final and any(beginning.startswith(rest) for beginning in _BEGINNINGS):
            return False
        if rest.startswith(_MESSAGE):
            rest = rest[len(_MESSAGE) :]
        elif recipient and recipient.startswith(_KNOWN):
            # The token between the recipient and the text is missing.
            known = next(name for name in _KNOWN if recipient.startswith(name))
            rest = self._buffer[match.start(1) + len(known) :]
            recipient = known
        elif not match.group().strip():
            # No header: text that goes on where the last message ended.
            rest = self._buffer
        self._buffer, self._in_header = rest, False
        if (recipient == "self") != self._thinks:
            self._thinks = not self._thinks
            segments += self._texts.feed(_SELF.opening if self._thinks else _SELF.closing)
        return bool(self._buffer)

    def _body(self, segments: list[Segment], final: bool) -> bool:
        mark = _MARK.search(self._buffer)
        if mark is None:
            held = 0 if final else max(partial(self._buffer, marker) for marker in (*_ENDS, _MESSAGE))
            size = len(self._buffer) - held
            segments += self._texts.feed(self._buffer[:size])
            self._buffer = self._buffer[size:]
            return False
        segments += self._texts.feed(self._buffer[: mark.start()])
        self._buffer = self._buffer[mark.start() if mark.group() == "<|start|>" else mark.end() :]
        self._in_header = mark.group() != _MESSAGE
        return True
