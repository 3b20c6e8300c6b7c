"""Start at login: the menu bar app among the things that a desktop session begins with.

A launch agent without keep-alive on macOS, an autostart entry (freedesktop.org) elsewhere. Both take effect at the
next login, so nothing needs to be told to anybody.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from omlx.service.launchd import plist

LABEL = "omlx.menubar"


def command() -> list[str]:
    return [os.path.abspath(sys.executable), "-m", "omlx", "menubar", "--start"]  # noqa: PTH100 (a venv's link stays)


def file() -> Path:
    """What exists while this is on."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "LaunchAgents" / f"{LABEL}.plist"
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return folder / "autostart" / "omlx-menubar.desktop"


def is_on() -> bool:
    return file().exists()


def switch(on: bool) -> None:
    """Raises OSError."""
    if not on:
        file().unlink(missing_ok=True)
        return
    file().parent.mkdir(parents=True, exist_ok=True)
    file().write_text(_agent() if sys.platform == "darwin" else _entry(), "utf-8")


def _agent() -> str:
    return plist({"Label": LABEL, "ProgramArguments": command(), "RunAtLoad": True, "LimitLoadToSessionType": "Aqua"})


def _entry() -> str:
    words = " ".join(_quoted(word) for word in command())
    return f"[Desktop Entry]\nType=Application\nName=oMLX\nExec={words}\nX-GNOME-Autostart-enabled=true\n"


def _quoted(word: str) -> str:
    """A word of `Exec`: quoted as the desktop entry specification wants it, which unescapes twice."""
    for character in ("\\", '"', "`", "$"):
        word = word.replace(character, "\\\\" + ("\\\\" if character == "\\" else character))
    return f'"{word.replace("%", "%%")}"'
