"""The `omlx` command. A *verb* is a subcommand; each has a module of its name, which is imported when it is used."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from omlx.errors import UserError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (default: this process's) and return the exit code: 0, 1 for an error, 130 for Ctrl+C."""
    _replace_closed_streams()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words in (["--version"], ["-v"]):
        with contextlib.suppress(UserError):  # told below, as those of all commands are
            from omlx.cli.version import print_version  # for this alone

            print_version()
            return 0
    from omlx.cli.app import run_command_line  # it asks stdout for its width at import

    return run_command_line(words)


def _replace_closed_streams() -> None:
    """A stream that the caller closed (`omlx list >&-`, some service managers) is None to Python: the null device."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115  # open to the end
