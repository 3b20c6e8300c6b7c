"""`omlx rm`: delete models from disk."""

from __future__ import annotations

from omlx.cli.command import Count, verb
from omlx.cli.connect import connected
from omlx.cli.console import err, out, run_async
from omlx.units import human_bytes


@verb("rm", usage="MODEL [MODEL...]", count=Count(1), models=True)
def command(args: tuple[str, ...]) -> None:
    """Remove a model

    The first failure ends the command. A model in memory leaves it with its last name.
    """
    run_async(_remove(args))


async def _remove(models: tuple[str, ...]) -> None:
    async with connected() as client:
        for model in models:
            freed = await client.delete(model)
            out(f"deleted '{model}'")
            if freed:
                err(f"freed {human_bytes(freed)}")
