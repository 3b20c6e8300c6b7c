"""What verbs share: writing to the terminal, reading the settings, and running asynchronous work."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Coroutine
from functools import cache
from typing import Any, TextIO, TypeVar

from omlx import settings

Result = TypeVar("Result")

_SPELLED = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
_SPELLED |= {code: f"\\u{code:04x}" for code in (0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))}


def out(text: str, end: str = "\n") -> None:
    """Write to stdout at once."""
    sys.stdout.write(text + end)
    sys.stdout.flush()


def printable(text: str) -> str:
    """`text` from elsewhere as it may be shown on a terminal: what would move the cursor, change colours or turn the
    direction of writing is spelled out. Lines and tabs stay."""
    return text.replace("\r\n", "\n").translate(_SPELLED)


def err(text: str, end: str = "\n") -> None:
    """Write to stderr at once."""
    sys.stderr.write(text + end)
    sys.stderr.flush()


def is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def columns(stream: TextIO) -> int:
    """Width of the terminal behind `stream`; 80 where there is none."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return shutil.get_terminal_size((80, 24)).columns


@cache
def effective() -> settings.Settings:
    """The settings as this process's environment and the config file give them."""
    loaded = settings.load({}, os.environ)
    for warning in loaded.warnings:
        _note_once(warning)
    return loaded.settings


@cache
def _note_once(text: str) -> None:
    """The settings are read more than once in a command."""
    err(f"note: {text}")


def run_async(work: Coroutine[Any, Any, Result]) -> Result:
    import asyncio  # 25 ms, which help does without

    return asyncio.run(work)


async def until_interrupted(work: Coroutine[Any, Any, None]) -> bool:
    """Run `work`; Ctrl+C cancels it instead of ending the program. True if it was cancelled so."""
    import asyncio  # as above

    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    loop.add_signal_handler(signal.SIGINT, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if current is not None and current.cancelling():  # somebody cancels us, not only the work
            raise
        return True
    finally:
        loop.remove_signal_handler(signal.SIGINT)
    return False
