"""`omlx rm`: delete models from disk."""

from __future__ import annotations

from omlx.cli.command import Count, verb
from omlx.cli.connect import connected
from omlx.cli.console import out, run_async


@verb("rm", usage="MODEL [MODEL...]", count=Count(1), models=True)
def command(args: tuple[str, ...]) -> None:
    """Remove a model

    The first failure ends the command. A model in memory leaves it with its last name.
    """
    run_async(_remove(args))


async def _remove(models: tuple[str, ...]) -> None:
    async with connected() as client:
        for model in models:
            await client.delete(model)
            out(f"deleted '{model}'")
