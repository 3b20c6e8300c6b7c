"""`omlx stop`: unload a model."""

from __future__ import annotations

from omlx.cli.command import CliError, Count, verb


@verb("stop", usage="MODEL", count=Count(1, 1), models=True)
def command(args: tuple[str, ...]) -> None:
    """Stop a running model

    The model leaves memory as soon as its current requests are done; its files stay.
    """
    from omlx.cli.console import run_async

    run_async(_stop(args[0]))


async def _stop(model: str) -> None:
    from omlx.cli.console import connected
    from omlx.client import ClientError

    async with connected() as client:
        try:
            await client.unload(model)
        except ClientError as error:
            if error.status != 404:
                raise
            raise CliError(f'couldn\'t find model "{model}" to stop') from error
