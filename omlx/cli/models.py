"""`omlx models`: pins and the list of models under one word."""

from __future__ import annotations

from omlx.cli import listing, pin, unpin
from omlx.cli.command import CliError, verb


@verb("models", usage="[list | pin [MODEL...] | unpin MODEL [MODEL...]]", models=True)
def command(args: tuple[str, ...]) -> None:
    """The same as `omlx list`, `omlx pin` and `omlx unpin`"""
    verbs = {"list": listing.command, "pin": pin.command, "unpin": unpin.command}
    name, *rest = args or ("list",)
    if name not in verbs:
        raise CliError("use `omlx models`, `omlx models pin MODEL` or `omlx models unpin MODEL`")
    verbs[name].main(rest, prog_name=f"omlx models {name}", standalone_mode=False)
