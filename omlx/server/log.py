"""The server's log: one short line per thing that happened, on stderr.

Logger names are `omlx.<part>`. Debug lines carry their part's name; everything else is only time and sentence.
"""

from __future__ import annotations

import logging
import sys
import time

logger = logging.getLogger("omlx.server")


class _Lines(logging.Formatter):
    """`2026-08-21 18:48:22 sentence`; warnings and errors say so; a traceback follows where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        level = f"{record.levelname}: " if record.levelno >= logging.WARNING else ""
        origin = f"[{record.name}] " if record.levelno <= logging.DEBUG else ""
        text = f"{clock} {level}{origin}{record.getMessage()}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class _Stderr(logging.Handler):
    """Writes to what `sys.stderr` is now: it may be replaced and the old one closed after the log was configured."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


def configure(level: str) -> None:
    """Send the `omlx` loggers to stderr at `level` ("debug", "info", "warning", "error")."""
    handler = _Stderr()
    handler.setFormatter(_Lines())
    for name in ("omlx", "omlx_registry", "uvicorn"):
        part = logging.getLogger(name)
        part.handlers = [handler]
        part.propagate = False
        # uvicorn's own start and stop messages would repeat ours.
        part.setLevel(logging.WARNING if name == "uvicorn" and level == "info" else level.upper())


def spell(seconds: float) -> str:
    """A duration for a log line: "3.2ms", "1.25s", "2m5s"."""
    if seconds < 1:
        return f"{seconds * 1000:.1f}ms"
    if seconds < 60:
        return f"{seconds:.2f}s"
    return f"{int(seconds) // 60}m{int(seconds) % 60}s"
