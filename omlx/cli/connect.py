"""How verbs reach the server: a client of it, and a start in the background where none runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from omlx.cli.command import CliError
from omlx.cli.console import effective, err
from omlx.client import Client, Unreachable


def own_client() -> Client:
    """A client for the address and with a key of the settings; nobody may be listening there."""
    return Client.for_settings(effective())


@asynccontextmanager
async def connected() -> AsyncIterator[Client]:
    """A client of a server that answers. Where none listens on this machine, one is started in the background."""
    async with own_client() as client:
        try:
            if not await client.alive():
                err(f"note: the server at {client.url} is Ollama, not oMLX")
        except Unreachable as error:
            # 30 ms that help and a call of a running server do without.
            from omlx.service.autostart import may_start, start_server

            if not may_start(effective()):
                raise CliError(
                    f"could not connect to omlx server at {client.url}, run 'omlx serve' to start it"
                ) from error
            await start_server(client, effective(), err)
        yield client
