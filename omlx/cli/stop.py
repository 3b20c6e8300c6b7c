"""`omlx stop`: unload a model, or end the server."""

from __future__ import annotations

import rich_click as click

from omlx.cli.command import CliError, Count, verb
from omlx.cli.connect import connected, own_client
from omlx.cli.console import effective, out, run_async
from omlx.client import ClientError
from omlx.service.ending import end_server


@verb("stop", usage="MODEL | --server", count=Count(0, 1), models=True)
@click.option("--server", is_flag=True, help="End the server, whether it is in the background or not")
def command(args: tuple[str, ...], server: bool) -> None:
    """Stop a running model

    The model leaves memory as soon as its current requests are done; its files stay. With --server the server on this
    machine ends: running requests get some seconds to finish (setting shutdown_grace), then all models are unloaded.
    """
    Count(0 if server else 1, 0 if server else 1).check(len(args))
    run_async(_stop_server() if server else _stop(args[0]))


async def _stop(model: str) -> None:
    async with connected() as client:
        try:
            await client.unload(model)
        except ClientError as error:
            if error.status != 404:
                raise
            raise CliError(f'couldn\'t find model "{model}" to stop') from error


async def _stop_server() -> None:
    async with own_client() as client:
        pid = await end_server(client, effective())
    out(f"stopped the server (process {pid})")
