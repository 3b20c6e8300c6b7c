"""The `omlx` command. A *verb* is a subcommand; each has a module of its name, which is imported when it is used."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (default: this process's) and return the exit code: 0, 1 for an error, 130 for Ctrl+C."""
    from omlx.cli.app import run_command_line

    return run_command_line(list(sys.argv[1:] if arguments is None else arguments))
