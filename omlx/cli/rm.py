"""`omlx rm`: delete models from disk."""

from __future__ import annotations

from omlx.cli.command import Count, verb


@verb("rm", usage="MODEL [MODEL...]", count=Count(1), models=True)
def command(args: tuple[str, ...]) -> None:
    """Remove a model

    Each model is stopped, then deleted; the first failure ends the command.
    """
    from omlx.cli.console import run_async

    run_async(_remove(args))


async def _remove(models: tuple[str, ...]) -> None:
    from omlx.cli.console import connected, err, out
    from omlx.client import ClientError
    from omlx.units import human_bytes

    async with connected() as client:
        for model in models:
            try:
                await client.unload(model)
            except ClientError as error:
                if "not found" not in str(error):
                    err(f"Warning: unable to stop model '{model}'")
            freed = await client.delete(model)
            out(f"deleted '{model}'")
            if freed:
                err(f"freed {human_bytes(freed)}")
