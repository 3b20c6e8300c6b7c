"""Processes that a test has started, apart from those that other tests of the same worker keep running."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

HELPERS = (
    "omlx.runner.rendering",
    "load_check",
    "image_decoder",
    "audio_decoder",
    "grammar_process",
    "omlx.server.large_json",
)
"""Processes that are kept for templates, load checks, images, audio, grammars and large bodies: of no model."""


def command_line(process: psutil.Process) -> str:
    """Its words with blanks between; "" for one that has ended, whether or not anybody has waited for it."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def is_helper(process: psutil.Process) -> bool:
    words = command_line(process)
    return any(helper in words for helper in HELPERS)


class Children:
    """The processes started since this was made, helpers apart."""

    def __init__(self) -> None:
        self._before = {child.pid for child in psutil.Process().children()}

    def __call__(self) -> list[psutil.Process]:
        children = psutil.Process().children()
        return [child for child in children if child.pid not in self._before and not is_helper(child)]


def has_begun(pid: int) -> bool:
    """Whether a process runs its own program: between fork and exec it is a copy of this one, its memory included.

    One that has ended runs none.
    """
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        return command not in (b"", Path(f"/proc/{os.getpid()}/cmdline").read_bytes())
    except OSError:
        return False
