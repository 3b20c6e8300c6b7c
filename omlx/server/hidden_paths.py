"""Where files are on the server is no concern of a client: an error names a file, not its place."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path


def hider(folders: Iterable[str | Path]) -> Callable[[str], str]:
    """A function that leaves only the last part of each path in one of `folders`, as given or with links followed."""
    named = [Path(folder).expanduser() for folder in folders if str(folder)]
    roots = {str(path) for folder in named for path in (folder.absolute(), _resolved(folder))} - {"/"}
    if not roots:
        return str
    longest_first = "|".join(re.escape(root) for root in sorted(roots, key=len, reverse=True))
    path = re.compile(rf"(?:{longest_first})(?=[/\s'\":,;)\]]|$)((?:/[^/\s'\":,;)\]]+)*)/?")

    def hide(text: str) -> str:
        return path.sub(lambda match: match[1].rpartition("/")[2] or Path(match[0]).name, text)

    return hide


def _resolved(folder: Path) -> Path:
    try:
        return folder.resolve()
    except (OSError, RuntimeError):
        return folder.absolute()


def folders_of_the_program() -> list[str | Path]:
    """Where the program and its libraries are, and the account's own files."""
    home = Path(sys.prefix)
    with contextlib.suppress(RuntimeError):
        home = Path.home()
    return [sys.prefix, sys.base_prefix, Path(__file__).parents[2], home]
