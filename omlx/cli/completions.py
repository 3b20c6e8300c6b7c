"""Shell completion: model names from the running server, and the scripts of contrib/completions.

`python -m omlx.cli.completions FOLDER` writes the scripts for bash, zsh and fish. They ask `omlx` itself what fits,
so they need not be made anew when a verb or flag is added.
"""

from __future__ import annotations

import sys
from pathlib import Path

TIMEOUT_S = 0.5
FILES = {"bash": "omlx.bash", "zsh": "_omlx", "fish": "omlx.fish"}


def model_names() -> list[str]:
    """The server's models; [] if none answers quickly. Never starts a server."""
    import os
    from urllib.request import ProxyHandler, build_opener

    import msgspec

    from omlx import settings
    from omlx.protocols.ollama import wire as wire

    try:
        url = settings.client_url(settings.load({}, os.environ).settings)
        with build_opener(ProxyHandler({})).open(f"{url}/api/tags", timeout=TIMEOUT_S) as reply:
            return [model.name for model in msgspec.json.decode(reply.read(), type=wire.ListResponse).models]
    except (OSError, settings.SettingError, msgspec.DecodeError, ValueError):
        return []


def script(shell: str) -> str:
    """The completion script for "bash", "zsh" or "fish"."""
    from click.shell_completion import get_completion_class

    from omlx.cli.app import PROGRAM, root

    kind = get_completion_class(shell)
    if kind is None:
        raise ValueError(f"no completion for {shell}")
    complete = kind(root, {}, PROGRAM, f"_{PROGRAM.upper()}_COMPLETE")
    return complete.source_template % complete.source_vars() + "\n"


def write(folder: Path) -> None:
    """Write all scripts into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for shell, name in FILES.items():
        (folder / name).write_text(script(shell), "utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
