"""The port: who listens on it, and how it becomes free."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import msgspec
import psutil

from omlx.migration.sources import launchd_jobs, unit_folders


class PortOwner(msgspec.Struct, frozen=True):
    """The process that listens; `name` "" and `pid` 0 where the system does not tell."""

    name: str = ""
    pid: int = 0

    def __str__(self) -> str:
        return f"{self.name}, process {self.pid}" if self.pid else "a process of another user"


def listener(port: int) -> PortOwner | None:
    """Who listens on a port of this machine; None where nobody is seen to."""
    with contextlib.suppress(psutil.Error):
        for found in psutil.net_connections(kind="tcp"):
            if found.status == psutil.CONN_LISTEN and found.laddr.port == port:
                if not found.pid:
                    return PortOwner()
                with contextlib.suppress(psutil.Error):
                    return PortOwner(psutil.Process(found.pid).name(), found.pid)
    return None


def how_to_free(found: PortOwner, home: Path, root: Path = Path("/")) -> str:
    """What to do so that the port becomes free, and stays so after the next start of the machine."""
    if found.pid and "ollama" not in found.name.lower():
        return f"end it (`kill {found.pid}`), or give oMLX another address with OMLX_HOST"
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
        return "quit Ollama in the menu bar, and take it out of the login items (System Settings, General)"
    return f"`kill {found.pid}`" if found.pid else "end the Ollama that listens there"
