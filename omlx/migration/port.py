"""The port: which process listens on it, and how to free it."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import msgspec
import psutil

from omlx.migration.sources import launchd_jobs, unit_folders


class PortOwner(msgspec.Struct, frozen=True):
    """The process that listens; `name` "" and `pid` 0 if it is unknown."""

    name: str = ""
    pid: int = 0

    def __str__(self) -> str:
        return f"{self.name}, process {self.pid}" if self.pid else "a process of another user"


def listener(port: int) -> PortOwner | None:
    """The process that listens on a port of this machine; None if there is none or it is not visible."""
    with contextlib.suppress(psutil.Error):
        for connection in psutil.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
                if not connection.pid:
                    return PortOwner()
                with contextlib.suppress(psutil.Error):
                    return PortOwner(psutil.Process(connection.pid).name(), connection.pid)
    return None


def how_to_free(owner: PortOwner, home: Path, root: Path = Path("/")) -> str:
    """Instructions to free the port, also after the next start of the machine."""
    if owner.pid and "ollama" not in owner.name.lower():
        return f"end it (`kill {owner.pid}`), or set another address with OMLX_HOST"
    folders = unit_folders(home, root)
    unit = next((folder for folder in folders if (folder / "ollama.service").is_file()), None)
    if unit is not None:
        user = unit == folders[0]
        return f"`{'systemctl --user' if user else 'sudo systemctl'} disable --now ollama`"
    jobs = launchd_jobs(home, root)
    if any("homebrew" in path.name for path in jobs):
        return "`brew services stop ollama`"
    if jobs:
        return f"`launchctl unload -w '{jobs[0]}'`"
    if sys.platform == "darwin":
        return "quit Ollama in the menu bar, and remove it from the login items (System Settings, General)"
    return f"`kill {owner.pid}`" if owner.pid else "end the Ollama process"
