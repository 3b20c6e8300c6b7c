"""The *spare* runner: a process whose imports are done and that waits for a model, so that the next load skips them."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import Callable, Sequence

from omlx.messages.failures import LoadError
from omlx.messages.frames import Hello
from omlx.runner.host import RunnerHost

log = logging.getLogger("omlx.pool")


_IMPORTS_S = 30.0
"""A spare that has not done its imports by then is hung."""
_ANSWER_S = 2.0
"""So is one that does not answer within this time: it has nothing else to do."""
_FIRST_AFTER_S = 3.0
"""Seconds after the server's start until the first spare runner is made: the server answers first."""
_CHECK_EVERY_S = 5.0


async def is_hung(host: RunnerHost) -> bool:
    """Whether a process without a model does not answer, though it lives: stopped, or stuck."""
    if host.starting:
        with contextlib.suppress(LoadError, TimeoutError):
            async with asyncio.timeout(max(0.0, _IMPORTS_S - host.age)):
                await host.hello()
                return False
        return True
    return not await host.answers(_ANSWER_S)


class Spare:
    """At most one spare; `enabled` False makes every `take` start a fresh process."""

    def __init__(self, command: Sequence[str], *, enabled: bool) -> None:
        self._command = command
        self._enabled = enabled
        self._host: RunnerHost | None = None
        self._refilling = asyncio.Lock()
        self._ending: set[asyncio.Task[None]] = set()
        self._left: set[asyncio.Task[RunnerHost]] = set()
        """Processes that start for loads that were given up."""

    async def take(self) -> RunnerHost:
        """The spare, or a process started now; a spare that does not answer is nobody's to wait for."""
        host, self._host = self._host, None
        if host is not None and host.alive:
            try:
                if not await is_hung(host):
                    return host
            except BaseException:
                self.keep(host)
                raise
            self._give_up(host)
        making = asyncio.create_task(RunnerHost.spawn(self._command), context=contextvars.Context())
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            self._left.add(making)
            making.add_done_callback(self._keep_made)
            raise

    def keep(self, host: RunnerHost) -> None:
        """Take back a runner that was not told to load anything: it is the spare, or ended where there is one."""
        if self._enabled and host.alive and (self._host is None or not self._host.alive):
            host.name = "spare"
            self._host = host
        else:
            self._end(host)

    def _keep_made(self, making: asyncio.Task[RunnerHost]) -> None:
        self._left.discard(making)
        if not making.cancelled() and making.exception() is None:
            self.keep(making.result())

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

    async def watch(self, has_room: Callable[[], bool]) -> None:
        """Make the first spare and replace any that does not answer. Runs until it is cancelled."""
        await asyncio.sleep(_FIRST_AFTER_S)
        if has_room():
            await self.refill()
        while True:
            await asyncio.sleep(_CHECK_EVERY_S)
            await self.check()

    async def check(self) -> None:
        """Replace a spare that does not answer."""
        host = self._host
        # One that is starting has its time; who takes it meanwhile checks it then.
        if host is None or not host.alive or (host.starting and host.age < _IMPORTS_S) or not await is_hung(host):
            return
        if self._host is host:
            self._host = None
            self._give_up(host)
            await self.refill()

    def _give_up(self, host: RunnerHost) -> None:
        log.warning("the spare runner (pid %d) does not answer and is replaced", host.pid)
        self._end(host)

    def _end(self, host: RunnerHost) -> None:
        host.kill()
        ending = asyncio.create_task(host.close(grace=0), context=contextvars.Context())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def refill(self) -> None:
        """Start a spare unless there is one."""
        if not self._enabled:
            return
        async with self._refilling:
            await asyncio.gather(*self._left, return_exceptions=True)
            if self._host is None or not self._host.alive:
                try:
                    # Another may have come back meanwhile: then this one ends.
                    self.keep(await RunnerHost.spawn(self._command))
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
        await asyncio.gather(*self._ending, return_exceptions=True)
