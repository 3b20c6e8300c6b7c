"""Autostart: a verb that needs a server and finds none starts `omlx serve` in the background, as Ollama's app does.

Only for an address of this machine, and only while the setting `autostart` is on. The server gets a session of its own
(it outlives the terminal), its output goes to a log file in the platform's log folder, and whoever starts it waits
until it answers. Of two starters one holds the lock file; the other finds the server running when it gets the lock.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from omlx.client import Client, Unreachable, is_loopback
from omlx.service.job import ServiceError, absolute, log_file, serve_command
from omlx.settings import Settings, bind_address, client_url

PATIENCE_S = 30.0
POLL_S = 0.05
TAIL_LINES = 15
LOG_LIMIT = 5_000_000


def may_start(settings: Settings) -> bool:
    """Whether a server may be started for this address: it must be loopback, plain HTTP, without a path."""
    host, port = bind_address(settings)
    plain = client_url(settings) in {f"http://{host}:{port}", f"http://[{host}]:{port}"}
    return settings.autostart and plain and is_loopback(settings.host)


async def start_server(client: Client, settings: Settings, say: Callable[[str], None]) -> None:
    """Return once a server answers at `client`'s address. `say` gets the line that tells of the start.

    Raises ServiceError, with the end of the log, if none comes up.
    """
    log = log_file(settings)
    try:
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        async with _only_one(log.with_suffix(".lock")):
            if await _answers(client):
                return
            _rotate(log)
            begun = log.stat().st_size if log.exists() else 0
            process = _spawn(log)
            say(f"Starting the oMLX server in the background (process {process.pid}, log {_short(log)})")
            await _wait(client, process, log, begun)
    except OSError as error:
        raise ServiceError(f"the server cannot be started in the background: {error}; run 'omlx serve'") from error


async def _wait(client: Client, process: subprocess.Popen[bytes], log: Path, begun: int) -> None:
    for _ in range(int(PATIENCE_S / POLL_S)):
        if await _answers(client):
            return
        if process.poll() is not None:
            raise ServiceError(
                f"the server ended with exit code {process.returncode} before it answered. {_tail(log, begun)}"
            )
        await asyncio.sleep(POLL_S)
    process.terminate()
    raise ServiceError(f"the server did not answer within {PATIENCE_S:.0f} seconds. {_tail(log, begun)}")


async def _answers(client: Client) -> bool:
    try:
        await client.alive()
    except Unreachable:
        return False
    return True


def _spawn(log: Path) -> subprocess.Popen[bytes]:
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as output:
        return subprocess.Popen(
            serve_command(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            # The folder this command runs in may go away; the server must not care.
            cwd=Path.home(),
            env=absolute(os.environ),
        )


@asynccontextmanager
async def _only_one(path: Path) -> AsyncIterator[None]:
    """Hold the lock file; waits for another starter. The system frees it if its holder dies."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno not in {errno.EAGAIN, errno.EACCES}:
                    raise
                await asyncio.sleep(POLL_S)
        yield
    finally:
        os.close(descriptor)


def _rotate(log: Path) -> None:
    if log.exists() and log.stat().st_size > LOG_LIMIT:
        log.replace(log.with_suffix(".log.1"))


def _tail(log: Path, begun: int) -> str:
    """The last lines this start has logged."""
    with log.open("rb") as file:
        file.seek(begun)
        lines = file.read().decode("utf-8", "replace").splitlines()[-TAIL_LINES:]
    if not lines:
        return f"It logged nothing to {_short(log)}."
    return f"The end of {_short(log)}:\n" + "\n".join(f"  {line}" for line in lines)


def _short(path: Path) -> str:
    try:
        return f"~/{path.relative_to(Path.home())}"
    except ValueError:
        return str(path)
