"""Ending the server of this machine, however it was started."""

from __future__ import annotations

import asyncio
import time

import psutil

from omlx.client import Client, ClientError, Unreachable
from omlx.service.job import ServiceError
from omlx.settings import Settings, bind_address

_ANSWER_S = 10.0
_POLL_S = 0.1
_PATIENCE_S = 30.0
"""Beyond the time that running requests get: runners write their caches to disk."""


async def end_server(client: Client, settings: Settings) -> int:
    """Return once the server at `client`'s address has ended; its process number. Raises ServiceError."""
    process = await _server_process(client, settings)
    try:
        process.terminate()
    except psutil.AccessDenied:
        raise ServiceError(f"the server (process {process.pid}) belongs to somebody else") from None
    except psutil.NoSuchProcess:
        pass
    deadline = time.monotonic() + settings.shutdown_grace + _PATIENCE_S
    while _lives(process):
        if time.monotonic() > deadline:
            raise ServiceError(f"the server does not end: `kill -9 {process.pid}` ends it without order")
        await asyncio.sleep(_POLL_S)
    return int(process.pid)


def _lives(process: psutil.Process) -> bool:
    """False too once it has ended and only waits for its parent to notice."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


async def _server_process(client: Client, settings: Settings) -> psutil.Process:
    """The server's process. What an address says of itself is believed only if that process listens there."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            pid = (await client.status()).pid
    except TimeoutError:
        raise ServiceError(f"the server at {client.url} does not answer: end its process with kill") from None
    except Unreachable as error:
        raise ServiceError(f"no server runs at {client.url}") from error
    except ClientError as error:
        if error.status != 404:
            raise
        raise ServiceError(f"the server at {client.url} is not oMLX: stop it as it was started") from error
    _, port = bind_address(settings)
    try:
        process = psutil.Process(pid)
        connections = process.net_connections(kind="tcp")
    except psutil.Error:
        connections = []
    if not any(connection.status == psutil.CONN_LISTEN and connection.laddr.port == port for connection in connections):
        raise ServiceError(f"the server at {client.url} is not a process of this machine that you may end")
    return process
