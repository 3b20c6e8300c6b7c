"""The server's log: one line per thing that happened, on stderr, for people or as JSON.

Logger names are `omlx.<part>`. A line that belongs to a request carries its id. Nothing from outside can end a line or
begin one: control characters are escaped, and the lines of a traceback are indented. Prompts are not logged, unless the
setting `log_prompts` asks for it; then the logger `PROMPTS` is switched on.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime

from omlx.record import PROMPTS, current

logger = logging.getLogger("omlx.server")

_REPEAT_S = 60.0
_MOST_SHOWN = 1000
_NUMBERS = re.compile(r"(?<![A-Za-z])[0-9][0-9a-f.]*|\b[0-9a-f]{12,}\b")

# C0 and C1 controls, the two separators that some programs take for a line's end, and what turns text around.
_UNSAFE = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}
_UNSAFE |= {ord("\t"): "\\t", ord("\n"): "\\n", ord("\r"): "\\r", 0x2028: "\\u2028", 0x2029: "\\u2029"}
_UNSAFE |= {code: f"\\u{code:04x}" for code in (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))}


class _LineFormatter(logging.Formatter):
    """`2026-08-21 18:48:22 [id] sentence`; warnings and errors say so, debug lines name their part."""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        request = _request_id(record)
        about = f"[{request}] " if request else ""
        level = f"{record.levelname}: " if record.levelno >= logging.WARNING else ""
        origin = f"[{record.name}] " if record.levelno <= logging.DEBUG else ""
        text = f"{clock} {about}{level}{origin}{_one_line(record.getMessage())}"
        if not record.exc_info:
            return text
        trace = self.formatException(record.exc_info)
        return "\n".join((text, *(f"    {_one_line(line)}" for line in trace.split("\n"))))


class _Json(logging.Formatter):
    """One object a line: time (UTC), level, logger, message; request_id and exception where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request := _request_id(record):
            fields["request_id"] = request
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        # ASCII only: no terminal or collector can be made to see anything in it but an object.
        return json.dumps(fields)


def _request_id(record: logging.LogRecord) -> str:
    """A runner's line says itself which request it is about; others are about the one being served."""
    return str(getattr(record, "request_id", "") or "") or current().id


def _one_line(text: str) -> str:
    return text.translate(_UNSAFE)


class Repeats:
    """Warnings that differ in their numbers alone: one is shown, the others are counted. `clock` in s."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._shown: dict[tuple[str, str], tuple[float, int, str]] = {}
        """By logger and text without numbers: when one was shown, how many were not, and the last of those."""

    def sift(self, record: logging.LogRecord) -> list[logging.LogRecord]:
        """What is to be shown now: `record`, unless it repeats, behind the counts of those that have ended."""
        now = self._clock()
        due = [key for key, (shown_at, _, _) in self._shown.items() if now - shown_at >= _REPEAT_S]
        ended = [(key[0], *self._shown.pop(key)[1:]) for key in due]
        shown = [_warning(name, f"{text} ({count} times more)") for name, count, text in ended if count]
        if record.levelno != logging.WARNING or record.exc_info:
            return [*shown, record]
        text = record.getMessage()
        key = (record.name, _NUMBERS.sub("#", text))
        if key in self._shown:
            shown_at, count, _ = self._shown[key]
            self._shown[key] = (shown_at, count + 1, text)
            return shown
        if len(self._shown) < _MOST_SHOWN:
            self._shown[key] = (now, 0, "")
        return [*shown, record]


def _warning(name: str, text: str) -> logging.LogRecord:
    return logging.LogRecord(name, logging.WARNING, "", 0, text, None, None)


class _Stderr(logging.Handler):
    """Writes to what `sys.stderr` is now: it may be replaced and the old one closed after the log was configured."""

    def __init__(self) -> None:
        super().__init__()
        self._repeats = Repeats()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            for one in self._repeats.sift(record):
                sys.stderr.write(self.format(one) + "\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


def configure(level: str, *, form: str = "text", prompts: bool = False) -> None:
    """Send the `omlx` loggers to stderr at `level` ("debug", "info", "warning", "error"), as "text" or "json"."""
    handler = _Stderr()
    handler.setFormatter(_Json() if form == "json" else _LineFormatter())
    for name in ("omlx", "omlx_registry", "uvicorn"):
        part = logging.getLogger(name)
        part.handlers = [handler]
        part.propagate = False
        # What uvicorn says beside errors repeats our lines, or is about clients that speak no HTTP.
        part.setLevel(logging.ERROR if name == "uvicorn" and level != "debug" else level.upper())
    PROMPTS.setLevel(logging.INFO if prompts else logging.CRITICAL)


def spell(seconds: float) -> str:
    """A duration for a log line: "3.2ms", "1.25s", "2m5s"."""
    if seconds < 1:
        return f"{seconds * 1000:.1f}ms"
    if seconds < 60:
        return f"{seconds:.2f}s"
    return f"{int(seconds) // 60}m{int(seconds) % 60}s"
