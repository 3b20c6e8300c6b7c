"""Progress on stderr: spinners for steps, bars for bytes, drawn as Ollama draws them.

A *display* owns some lines at the bottom of the terminal and redraws them ten times a second from a thread of its own,
so that they move while the event loop is busy. Where stderr is no terminal it prints plain lines instead: one per
step, and for bytes one every few seconds and one at the end.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

from omlx.cli.console import columns, err, is_terminal
from omlx.cli.tables import text_width
from omlx.units import format_duration, human_bytes

if TYPE_CHECKING:
    from omlx.protocols.ollama.models import StatusLine

FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
REDRAW_S = 0.1
PLAIN_INTERVAL_S = 5.0
RATE_WINDOW_S = 10.0
_HIDE, _SHOW, _CLEAR_LINE = "\x1b[?25l", "\x1b[?25h", "\x1b[K"


class Spinner:
    """A step without a measure; done once the next one begins."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.done = False

    def line(self, width: int, now: float) -> str:
        frame = "" if self.done else FRAMES[int(now / REDRAW_S) % len(FRAMES)]
        return f"{self.text} {frame}"[: width - 1].rstrip() if self.text else frame


class Bar:
    """Bytes done of a total."""

    def __init__(self, label: str, total: int, completed: int, now: float) -> None:
        self.label = label
        self.total = total
        self.completed = completed
        self._seen = deque([(now, completed)])
        self._printed_at = now
        self._printed_done = False

    @property
    def done(self) -> bool:
        return self.completed >= self.total

    def update(self, completed: int, now: float) -> None:
        self.completed = completed
        self._seen.append((now, completed))
        while len(self._seen) > 2 and now - self._seen[0][0] > RATE_WINDOW_S:
            self._seen.popleft()

    def due(self, now: float) -> bool:
        """Whether a log wants a line about this bar now: every few seconds, and once at the end."""
        if self._printed_done or not (self.done or now - self._printed_at >= PLAIN_INTERVAL_S):
            return False
        self._printed_at, self._printed_done = now, self.done
        return True

    def rate(self) -> float:
        """Bytes per second over the last seconds; 0 while unknown."""
        (begun, before), (now, after) = self._seen[0], self._seen[-1]
        return (after - before) / (now - begun) if now > begun else 0.0

    def line(self, width: int, now: float) -> str:
        return bar_line(self.label, self.completed, self.total, 0.0 if self.done else self.rate(), width)


def bar_line(label: str, completed: int, total: int, rate: float, width: int) -> str:
    """`pulling 6a0746a1ec1a:  45% ▕███████          ▏ 2.1 GB/4.7 GB   85 MB/s     30s`, `width` columns.

    `rate` in bytes per second, 0: unknown. A full bar shows the total only.
    """
    share = min(1.0, completed / total) if total > 0 else 0.0
    head = f"{label} {share * 100:3.0f}%" if label else f"{share * 100:3.0f}%"
    tail = _amounts(completed, total) + _speed(total - completed, rate)
    room = width - text_width(head) - text_width(tail) - 5
    filled = int(room * share)
    middle = f" ▕{'█' * filled}{' ' * (room - filled)}▏ " if room > 0 else " "
    return (head + middle + tail)[: max(width, text_width(head))]


def plain_bar_line(label: str, completed: int, total: int, rate: float) -> str:
    """The same without a bar, for logs."""
    share = min(1.0, completed / total) if total > 0 else 0.0
    return f"{label} {share * 100:3.0f}% {_amounts(completed, total)}{_speed(total - completed, rate)}".rstrip()


def _amounts(completed: int, total: int) -> str:
    """13 columns."""
    if completed >= total:
        return f"{human_bytes(total):>6}       "
    return f"{human_bytes(completed):>6}/{human_bytes(total):>6}"


def _speed(remaining: int, rate: float) -> str:
    """18 columns: rate and time left, or blanks."""
    if rate <= 0 or remaining <= 0:
        return " " * 18
    return f"  {human_bytes(int(rate)):>6}/s  {_time_left(remaining / rate):>6}"


def _time_left(seconds: float) -> str:
    if seconds >= 100 * 3600:
        return "99h+"
    if seconds >= 3600:
        return f"{int(seconds // 3600)}h{int(seconds % 3600 // 60)}m"
    return format_duration(int(seconds))


class Display:
    """The lines of one operation. Use as `with Display() as display:`."""

    def __init__(self) -> None:
        self._animated = is_terminal(sys.stderr)
        self._lines: dict[str, Spinner | Bar] = {}
        self._steps = 0
        self._drawn = 0
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._painter = threading.Thread(target=self._repaint, daemon=True)

    def __enter__(self) -> Self:
        if self._animated:
            err(_HIDE, end="")
            self._painter.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def step(self, text: str) -> None:
        """A new step begins; the one before is done."""
        with self._lock:
            self._finish_steps()
            self._steps += 1
            self._lines[f"step {self._steps}"] = Spinner(text)
        if not self._animated and text:
            err(text)

    def restate(self, text: str) -> None:
        """Another text for the current step (a percentage that moves)."""
        with self._lock:
            line = self._lines.get(f"step {self._steps}")
            if isinstance(line, Spinner):
                line.text = text

    def bytes(self, key: str, label: str, completed: int, total: int) -> None:
        """`completed` of `total` bytes are done of what `key` names."""
        now = time.monotonic()
        with self._lock:
            self._finish_steps()
            bar = self._lines.get(key)
            if not isinstance(bar, Bar):
                bar = self._lines[key] = Bar(label, total, completed, now)
            bar.update(completed, now)
            if self._animated or not bar.due(now):
                return
        err(plain_bar_line(bar.label, bar.completed, bar.total, bar.rate()))

    def stop(self, *, clear: bool = False) -> None:
        """Stop drawing. `clear`: the lines vanish (a spinner before an answer); else they stay. Harmless twice."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        if not self._animated:
            return
        self._painter.join()
        self._finish_steps()
        if clear:
            up = f"\x1b[{self._drawn - 1}A" if self._drawn > 1 else ""
            err(f"{up}\r\x1b[J" if self._drawn else "", end="")
        else:
            self._paint()
            err("" if not self._drawn else "\n", end="")
        err(_SHOW, end="")

    def _finish_steps(self) -> None:
        for line in self._lines.values():
            if isinstance(line, Spinner):
                line.done = True

    def _repaint(self) -> None:
        while not self._stopped.wait(REDRAW_S):
            with self._lock:
                self._paint()

    def _paint(self) -> None:
        width, now = columns(sys.stderr), time.monotonic()
        # Lines above the top of the screen cannot be reached again: draw what fits.
        lines = [line.line(width, now) for line in self._lines.values()][-_rows() :]
        up = f"\x1b[{self._drawn - 1}A" if self._drawn > 1 else ""
        if lines:
            err(f"{up}\r" + "\n".join(line + _CLEAR_LINE for line in lines), end="")
        self._drawn = max(self._drawn, len(lines))


def _rows() -> int:
    try:
        return max(1, os.get_terminal_size(sys.stderr.fileno()).lines - 1)
    except (OSError, ValueError):
        return 23


async def follow(lines: AsyncIterator[StatusLine], display: Display) -> None:
    """Show a pull, push or create. Lines with a digest are bars, others steps; a bar starts with its first bytes."""
    status = ""
    async for line in lines:
        if line.digest:
            if line.completed > 0:
                display.bytes(line.digest, _label(line), line.completed, line.total)
        elif line.status != status:
            status = line.status
            display.step(status)


def _label(line: StatusLine) -> str:
    if line.status:
        return f"{line.status}:"
    return f"{line.digest.removeprefix('sha256:')[:12]}:"
