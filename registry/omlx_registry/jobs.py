"""Shared jobs: two clients that pull the same model watch one pull.

A job is an iterator of progress lines that one task drives; any number of watchers follow it, late ones begin with
where it stands. When the last watcher leaves, the job is cancelled. One event loop owns all of this: no locks.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Hashable

from omlx_registry.spec import Progress


class Jobs:
    """The jobs under way, by key."""

    def __init__(self) -> None:
        self._running: dict[Hashable, _SharedJob] = {}

    async def watch(self, key: Hashable, start: Callable[[], AsyncGenerator[Progress]]) -> AsyncGenerator[Progress]:
        """Follow the job of that key; `start` makes it where there is none. Raises what the job raises."""
        job = self._running.get(key)
        if job is None:
            job = self._running[key] = _SharedJob(start())
        job.watchers += 1
        try:
            async for progress in job.lines():
                yield progress
        finally:
            job.watchers -= 1
            if job.watchers == 0:
                # A newcomer must not join a job that is being cancelled: forget it first.
                if self._running.get(key) is job:
                    del self._running[key]
                await job.stop()


class _SharedJob:
    def __init__(self, source: AsyncGenerator[Progress]) -> None:
        self.watchers = 0
        self._source = source
        self._latest: dict[tuple[str, str], tuple[int, Progress]] = {}
        self._count = 0
        self._changed = asyncio.Condition()
        self._error: BaseException | None = None
        self._done = False
        self._task = asyncio.create_task(self._drive())

    async def lines(self) -> AsyncGenerator[Progress]:
        """Every status once, and of each status its newest figures: a slow watcher skips what is out of date."""
        seen = 0
        while True:
            async with self._changed:
                while self._count == seen and not self._done:
                    await self._changed.wait()
                fresh = sorted((it for it in self._latest.values() if it[0] > seen), key=lambda it: it[0])
                ended, error = self._done, self._error
                seen = self._count
            for _, line in fresh:
                yield line
            if ended:
                if error is not None:
                    raise error
                return

    async def stop(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _drive(self) -> None:
        try:
            async for line in self._source:
                async with self._changed:
                    self._count += 1
                    self._latest[line.status, line.digest] = self._count, line
                    self._changed.notify_all()
        except Exception as error:
            self._error = error
        finally:
            close = getattr(self._source, "aclose", None)
            if close is not None:
                await close()
            async with self._changed:
                self._done = True
                self._changed.notify_all()
