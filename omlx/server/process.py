"""The *server process*: binds the port, runs the application under uvicorn, and ends in order.

On SIGTERM or SIGINT no new work is taken and running requests get some seconds to end (`shutdown_grace`); then all
runners are ended, which gives streams that are still open their error line, and the process exits 0 whatever clients
do. A second signal does not wait for anybody.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import signal
import socket
import sys
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any, cast

import uvicorn
from omlx_registry import Registry, RegistryError

from omlx import __version__
from omlx.folders import why_unusable
from omlx.pool import Pool, PoolError
from omlx.runner.launch import LaunchError
from omlx.runner.template_check import check_chat_templates, check_go_template
from omlx.server import keys, log
from omlx.server.app import Balancer, create_app
from omlx.server.connection import Connection
from omlx.server.connection_limits import Connections, allow_open_files
from omlx.server.origins import OriginError
from omlx.server.telemetry import Telemetry
from omlx.settings import Settings, bind_address
from omlx.units import human_bytes

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LINGER_S = 1.0
"""How long answers get to end once their runners are gone, and again once they are cancelled."""
_LOOK_S = 0.02
_IDLE_CONNECTION_S = 120


def run(settings: Settings, balancer: Balancer | None = None) -> int:
    log.configure(
        "debug" if settings.debug else settings.log_level, form=settings.log_format, prompts=settings.log_prompts
    )
    # What people ask their models stays theirs: models, caches and logs are for their owner, runners' files included.
    os.umask(0o077)
    connections = Connections(allow_open_files())
    unusable = why_unusable(Path(settings.models), create=True)
    if unusable:
        where = f"the models folder {settings.models} cannot be used: {unusable}"
        return _refuse(f"{where}; make it writable, or name another with --models or OMLX_MODELS")
    try:
        registry = Registry(
            Path(settings.models),
            check_template=check_go_template,
            check_chat=check_chat_templates,
            version=settings.ollama_version,
            load_checker="omlx.runner.load_check",
        )
        pool = Pool(settings)
        registry.bring_up_to_date()
        listener = _listen(settings)
        app = create_app(settings, registry, pool, listener.getsockname()[0], balancer)
    except (LaunchError, OriginError, OSError, RegistryError) as error:
        return _refuse(str(error))
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=cast(Any, partial(Connection, limits=connections)),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_IDLE_CONNECTION_S,
        timeout_graceful_shutdown=1,
    )
    server = _Server(config, settings, registry, pool, app.telemetry, bound_to=listener.getsockname()[0])
    server.run(sockets=[listener])
    return 0 if server.started else 1


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; "::" takes IPv4 as well. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = host == "::" and socket.has_dualstack_ipv6()
    listener = socket.create_server((host, port), family=family, backlog=2048, dualstack_ipv6=both)
    listener.setblocking(False)
    return listener


def _listen(settings: Settings) -> socket.socket:
    """Raises OSError in the words of Ollama."""
    try:
        return listen(*bind_address(settings))
    except OSError as error:
        raise OSError(f"listen tcp {_address(settings)}: bind: {_reason(error)}") from error


class _Server(uvicorn.Server):
    """uvicorn with our signals, our log lines and our order of ending."""

    def __init__(
        self,
        config: uvicorn.Config,
        settings: Settings,
        registry: Registry,
        pool: Pool,
        telemetry: Telemetry,
        *,
        bound_to: str,
    ) -> None:
        super().__init__(config)
        self._bound_to = bound_to
        self._settings = settings
        self._registry = registry
        self._pool = pool
        self._telemetry = telemetry
        self._afterwards: asyncio.Task[None] | None = None
        self._drain: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            gc.freeze()
            gc.enable()
            version = self._settings.ollama_version
            log.logger.info("Listening on %s (version %s, omlx %s)", _address(self._settings), version, __version__)
            unguarded = keys.warning(self._settings, self._bound_to)
            if unguarded:
                log.logger.warning("%s", unguarded)
            self._afterwards = asyncio.create_task(self._once_up())

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """uvicorn would raise the signal again at the end and so lose the exit code."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._stop, number)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    def _stop(self, number: int) -> None:
        if self.should_exit:
            self.force_exit = True
            if self._drain is not None:
                self._drain.cancel()
            return
        log.logger.info("%s: stopping", signal.Signals(number).name)
        self.should_exit = True

    async def _once_up(self) -> None:
        """What need not delay the first answer."""
        if not self._settings.no_prune:
            try:
                pruned = await asyncio.to_thread(self._registry.prune)
            except RegistryError as error:
                log.logger.warning("unused blobs could not be removed: %s", error)
            else:
                if pruned.removed:
                    log.logger.info("Removed %d unused blobs (%s)", pruned.removed, human_bytes(pruned.freed))
        warning = await asyncio.to_thread(lambda: self._pool.pin_warning(self._registry.list()))
        if warning:
            log.logger.warning("%s", warning)
        for name in self._settings.preload:
            try:
                spec = await asyncio.to_thread(self._registry.resolve, name)
                async with await self._pool.acquire(spec):
                    pass
            except (RegistryError, PoolError) as error:
                log.logger.error("%s could not be preloaded: %s", name, error.message)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        self._telemetry.end_streams()
        if self._afterwards is not None:
            self._afterwards.cancel()
        self._drain = asyncio.create_task(self._pool.drain(self._settings.shutdown_grace))
        await asyncio.wait([self._drain])
        await self._pool.close()
        await self._end_requests()
        # uvicorn leaves the application running when it is in a hurry; by now that takes no time.
        self.force_exit = False
        await super().shutdown(sockets)
        log.logger.info("Stopped")

    async def _end_requests(self) -> None:
        """Let answers end now that their runners are gone; then cancel those that do not, which tells their clients."""
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        for cancel in (False, True):
            for task in list(state.tasks) if cancel else ():
                task.cancel()
            until = asyncio.get_running_loop().time() + (_LOOK_S if self.force_exit else _LINGER_S)
            # Nothing tells when a connection has sent its last byte.
            while (state.tasks or state.connections) and asyncio.get_running_loop().time() < until:  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_S)
        for connection in list(state.connections):
            cast(Connection, connection).drop()


def _refuse(sentence: str) -> int:
    print(f"Error: {sentence}", file=sys.stderr)  # noqa: T201
    return 1


def _address(settings: Settings) -> str:
    host, port = bind_address(settings)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _reason(error: OSError) -> str:
    """Go's words: lower case, without the number."""
    # The numbers of getaddrinfo are negative; socket.create_server raises them as a plain OSError.
    if isinstance(error, socket.gaierror) or (error.errno or 0) < 0:
        return "no such host"
    if error.errno == errno.EADDRNOTAVAIL:
        return "cannot assign requested address"
    return os.strerror(error.errno).lower() if error.errno else str(error)
