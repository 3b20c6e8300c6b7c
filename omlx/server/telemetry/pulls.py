"""The pulls of this server: those of clients, which end with their request, and those it runs by itself.

All are listed with their progress and can be cancelled; who waits for a cancelled pull gets an error line.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
import re
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from omlx_registry import InvalidName, Progress, PullError, parse_name

from omlx.protocols.admin.overview import PullRow

log = logging.getLogger("omlx.server")

MOST = 16
"""Pulls the server runs by itself at once."""
_SHOWN_S = 60.0
"""How long a pull stays listed that went well or was cancelled; a failed one stays until somebody dismisses it."""
_MOST_FAILED = 50
_NUMBER = re.compile(r"\[Errno -?\d+\] ")
"""What Python puts in front of the system's words; it tells a user nothing."""


class _PullState:
    def __init__(self, number: int, name: str) -> None:
        self.number, self.name = number, name
        self.model = _model_of(name)
        self.state, self.status, self.error = "running", "starting", ""
        self.layers: dict[str, tuple[int, int]] = {}
        """Bytes completed and in total, by digest."""
        self.cancelled = asyncio.Event()
        self.ended = 0.0

    def note(self, step: Progress) -> None:
        self.status = step.status
        if step.digest:
            self.layers[step.digest] = (step.completed, step.total)

    def end(self, state: str, error: str = "") -> None:
        self.state, self.error, self.ended = state, _NUMBER.sub("", error), time.monotonic()

    def row(self) -> PullRow:
        done, total = (sum(part) for part in zip(*self.layers.values(), strict=True)) if self.layers else (0, 0)
        return PullRow(
            number=self.number, name=self.name, state=self.state, status=self.status, completed=done, total=total,
            error=self.error,
        )  # fmt: skip


def _model_of(name: str) -> str:
    """The same for all ways to write a model's name."""
    try:
        return parse_name(name).full.lower()
    except InvalidName:
        return name


class Pulls:
    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._pulls: dict[int, _PullState] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def rows(self) -> list[PullRow]:
        """One a model: those that run, those that ended within the last minute, and failed ones; the newest first."""
        limit = time.monotonic() - _SHOWN_S
        failed = [number for number, pull in self._pulls.items() if pull.state == "failed"][-_MOST_FAILED:]
        self._pulls = {
            number: pull
            for number, pull in self._pulls.items()
            if not pull.ended or pull.ended > limit or number in failed
        }
        shown: dict[str, _PullState] = {}
        for pull in self._pulls.values():
            before = shown.get(pull.model)
            if before is None or before.ended or not pull.ended:
                shown.pop(pull.model, None)
                shown[pull.model] = pull
        return [pull.row() for pull in reversed(shown.values())]

    async def follow(self, name: str, steps: AsyncGenerator[Progress]) -> AsyncGenerator[Progress]:
        """`steps` as they come, listed meanwhile. Raises what they raise, and PullError once cancelled."""
        async with aclosing(_follow(self._new(name), steps)) as followed:
            async for step in followed:
                yield step

    def start(self, name: str, steps: AsyncGenerator[Progress]) -> int:
        """Run a pull in the background; returns its number. Raises PullError where too many run."""
        if len(self._tasks) >= MOST:
            raise PullError(f"{MOST} pulls are running already; wait for one to end")
        pull = self._new(name)

        async def run() -> None:
            # The list tells how it ended.
            with suppress(Exception):
                async with aclosing(_follow(pull, steps)) as followed:
                    async for _ in followed:
                        pass
            log.info("The pull of %s has ended: %s%s", name, pull.state, f": {pull.error}" if pull.error else "")

        task = asyncio.create_task(run(), name=f"pull {name}", context=contextvars.Context())
        self._tasks[pull.number] = task
        task.add_done_callback(lambda _: self._tasks.pop(pull.number, None))
        return pull.number

    def cancel(self, number: int) -> bool:
        """Cancel all pulls of the model, or dismiss them where they have ended; False where there is no such pull."""
        pull = self._pulls.get(number)
        if pull is None:
            return False
        for other in [other for other in self._pulls.values() if other.model == pull.model]:
            if other.ended:
                del self._pulls[other.number]
            else:
                other.cancelled.set()
        return True

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _new(self, name: str) -> _PullState:
        pull = _PullState(next(self._numbers), name)
        # What became of earlier pulls of the model is of no interest any more.
        self._pulls = {n: old for n, old in self._pulls.items() if old.model != pull.model or not old.ended}
        self._pulls[pull.number] = pull
        return pull


async def _follow(pull: _PullState, steps: AsyncGenerator[Progress]) -> AsyncGenerator[Progress]:
    stop = asyncio.ensure_future(pull.cancelled.wait())
    coming: asyncio.Future[Progress | None] | None = None
    try:
        async with aclosing(steps):
            try:
                while True:
                    coming = asyncio.ensure_future(anext(steps, None))
                    await asyncio.wait((coming, stop), return_when=asyncio.FIRST_COMPLETED)
                    if not coming.done():
                        raise PullError(f"the pull of {pull.name} was cancelled")
                    step = coming.result()
                    if step is None:
                        pull.end("done")
                        return
                    pull.note(step)
                    yield step
            finally:
                # `steps` cannot be closed while it runs.
                if coming is not None and not coming.done():
                    coming.cancel()
                    await asyncio.gather(coming, return_exceptions=True)
    except Exception as error:
        pull.end("cancelled" if pull.cancelled.is_set() else "failed", str(error))
        raise
    finally:
        stop.cancel()
        if pull.state == "running":
            pull.end("cancelled", "its client left")
