"""The *spare* runner: a process whose imports are done and that waits for a model, so that the next load skips them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from omlx.runner.host import RunnerHost
from omlx.runner.protocol import Hello

log = logging.getLogger("omlx.pool")


class Spare:
    """At most one spare; `enabled` False makes every `take` start a fresh process."""

    def __init__(self, command: Sequence[str], *, enabled: bool) -> None:
        self._command = command
        self._enabled = enabled
        self._host: RunnerHost | None = None
        self._refilling = asyncio.Lock()

    async def take(self) -> RunnerHost:
        """The spare, or a process started now."""
        host, self._host = self._host, None
        if host is not None and host.alive:
            return host
        return await RunnerHost.spawn(self._command)

    async def hello(self) -> Hello:
        """What a runner says of this machine: the spare, which stays, or else one that is started for it.

        Raises LoadError, OSError.
        """
        host = await self.take()
        try:
            return await host.hello()
        finally:
            if self._enabled and self._host is None and host.alive:
                self._host = host
            else:
                await host.close(grace=0.5)

    async def refill(self) -> None:
        """Start a spare unless there is one."""
        if not self._enabled:
            return
        async with self._refilling:
            if self._host is None or not self._host.alive:
                try:
                    self._host = await RunnerHost.spawn(self._command)
                except OSError as error:
                    log.warning("no spare runner: %s", error)

    async def drop(self) -> None:
        """End the spare, if there is one: its memory is needed. A later `refill` makes another."""
        async with self._refilling:
            host, self._host = self._host, None
        if host is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await host.close(grace=0.5)

    async def close(self) -> None:
        self._enabled = False
        await self.drop()
