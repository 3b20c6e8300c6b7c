"""`omlx stop`: unload a model, or end the server."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import rich_click as click

from omlx.cli.command import CliError, Count, verb

if TYPE_CHECKING:
    import psutil

    from omlx.client import Client
    from omlx.settings import Settings

_ANSWER_S = 10.0
_POLL_S = 0.1
_PATIENCE_S = 30.0
"""Beyond the time that running requests get: runners write their caches to disk."""


@verb("stop", usage="MODEL | --server", count=Count(0, 1), models=True)
@click.option("--server", is_flag=True, help="End the server, whether it is in the background or not")
def command(args: tuple[str, ...], server: bool) -> None:
    """Stop a running model

    The model leaves memory as soon as its current requests are done; its files stay. With --server the server on this
    machine ends: running requests get some seconds to finish (setting shutdown_grace), then all models are unloaded.
    """
    from omlx.cli.console import run_async

    Count(0 if server else 1, 0 if server else 1).check(len(args))
    run_async(_stop_server() if server else _stop(args[0]))


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


async def _stop_server() -> None:
    from omlx.cli.console import effective, out, own_client

    async with own_client() as client:
        pid = await end_server(client, effective())
    out(f"stopped the server (process {pid})")


async def end_server(client: Client, settings: Settings) -> int:
    """Return once the server at `client`'s address has ended; its process number. Raises CliError."""
    import psutil

    process = await _server_process(client, settings)
    try:
        process.terminate()
    except psutil.AccessDenied:
        raise CliError(f"the server (process {process.pid}) belongs to somebody else") from None
    except psutil.NoSuchProcess:
        pass
    deadline = time.monotonic() + settings.shutdown_grace + _PATIENCE_S
    while _lives(process):
        if time.monotonic() > deadline:
            raise CliError(f"the server does not end: `kill -9 {process.pid}` ends it without order")
        await asyncio.sleep(_POLL_S)
    return int(process.pid)


def _lives(process: psutil.Process) -> bool:
    """False too once it has ended and only waits for its parent to notice."""
    import psutil

    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


async def _server_process(client: Client, settings: Settings) -> psutil.Process:
    """The server's process. What an address says of itself is believed only if that process listens there."""
    import psutil

    from omlx.client import ClientError, Unreachable
    from omlx.settings import bind_address

    try:
        async with asyncio.timeout(_ANSWER_S):
            pid = (await client.status()).pid
    except TimeoutError:
        raise CliError(f"the server at {client.url} does not answer: end its process with kill") from None
    except Unreachable as error:
        raise CliError(f"no server runs at {client.url}") from error
    except ClientError as error:
        if error.status != 404:
            raise
        raise CliError(f"the server at {client.url} is not oMLX: stop it as it was started") from error
    _, port = bind_address(settings)
    try:
        process = psutil.Process(pid)
        connections = process.net_connections(kind="tcp")
    except psutil.Error:
        connections = []
    if not any(found.status == psutil.CONN_LISTEN and found.laddr.port == port for found in connections):
        raise CliError(f"the server at {client.url} is not a process of this machine that you may end")
    return process
