"""The service files of contrib/, for those who install them by hand: `python -m omlx.service.templates contrib`.

They are what `omlx service install` writes, for a user called you; `make docs` makes them, a test checks for drift.
"""

from __future__ import annotations

import sys
from pathlib import Path

from omlx.service import launchd, systemd
from omlx.service.job import ServiceJob
from omlx.service.manager import LABEL

_ENVIRONMENT = {"OMLX_HOST": "127.0.0.1:11434"}


def _job(home: str, log: str) -> ServiceJob:
    return ServiceJob(
        description="oMLX, an Ollama-compatible server for MLX models",
        command=[f"{home}/omlx/.venv/bin/python", "-m", "omlx", "serve"],
        environment=_ENVIRONMENT,
        log=Path(home) / log,
        folder=Path(home),
    )


def files() -> dict[str, str]:
    """Text by path below contrib/."""
    return {
        f"launchd/{LABEL}.plist": launchd.agent(_job("/Users/you", "Library/Logs/omlx/server.log"), label=LABEL),
        "systemd/omlx.service": systemd.unit(_job("/home/you", ".local/state/omlx/log/server.log")),
    }


if __name__ == "__main__":
    for name, text in files().items():
        path = Path(sys.argv[1]) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
