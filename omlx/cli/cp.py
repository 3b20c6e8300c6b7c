"""`omlx cp`: give a model a second name."""

from __future__ import annotations

from omlx.cli.command import Count, verb
from omlx.cli.connect import connected
from omlx.cli.console import out, run_async


@verb("cp", usage="SOURCE DESTINATION", count=Count(2, 2), models=True)
def command(args: tuple[str, ...]) -> None:
    """Copy a model

    The copy shares the files of its source and takes no further space.
    """
    source, destination = args
    run_async(_copy(source, destination))
    out(f"copied '{source}' to '{destination}'")


async def _copy(source: str, destination: str) -> None:
    async with connected() as client:
        await client.copy(source, destination)
