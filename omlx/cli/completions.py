"""The completion scripts of contrib/completions.

`python -m omlx.cli.completions FOLDER` writes them for bash, zsh and fish. They ask `omlx` itself what fits, so they
need not be made anew when a verb or flag is added.
"""

from __future__ import annotations

import sys
from pathlib import Path

from click.shell_completion import get_completion_class

from omlx.cli.app import PROGRAM, root

FILES = {"bash": "omlx.bash", "zsh": "_omlx", "fish": "omlx.fish"}


def script(shell: str) -> str:
    """The completion script for "bash", "zsh" or "fish"."""
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
