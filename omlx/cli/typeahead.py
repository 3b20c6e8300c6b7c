"""*Type-ahead*: what is typed before a session asks for it, while it starts or while an answer comes.

A terminal is set to lines and echo when a program starts: it would show what is typed in the midst of other output, and
hand Enter on as a line feed, which the session's editor takes for Ctrl+J. So it is set otherwise as early as possible,
and what was typed before that is read here.
"""

from __future__ import annotations

import os
import re
import select
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager

_MOST_BYTES = 65_536
_KEYS = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|O.|.)?|[\x00-\x09\x0b-\x1f\x7f]")
"""Escape sequences and control characters: keys that mean something to the editor only."""


@contextmanager
def typing_ahead() -> Iterator[str]:
    """Set the terminal so that what is typed waits unseen for the next prompt, and Enter sends it. Ctrl+C interrupts.

    Gives what was typed before, its lines ending with line feeds; "" where stdin is no terminal.
    """
    terminal = sys.stdin.fileno()
    if not os.isatty(terminal):
        yield ""
        return
    before = termios.tcgetattr(terminal)
    changed = termios.tcgetattr(terminal)
    changed[0] &= ~termios.ICRNL
    changed[3] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(terminal, termios.TCSANOW, changed)
    try:
        yield _typed(terminal)
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _typed(terminal: int) -> str:
    """What waits in the terminal. Outside of line mode its last, unfinished line can be read, too."""
    ready, _, _ = select.select([terminal], [], [], 0)
    data = os.read(terminal, _MOST_BYTES) if ready else b""
    return _KEYS.sub("", data.decode("utf-8", "replace").replace("\r", "\n"))
