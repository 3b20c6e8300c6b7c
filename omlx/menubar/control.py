"""The *control*: looks at the server again and again, and does what a click asks for.

It lives on one event loop in a thread of its own, since the platforms want their main thread for the menu. Its owner
hands clicks over with `click`, from any thread, and is told each new look by `show`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

import msgspec

from omlx.client import Client, ClientError, Unreachable
from omlx.errors import UserError
from omlx.menubar import login
from omlx.menubar.menu import Act
from omlx.menubar.seen import ServerState
from omlx.service.autostart import may_start, start_server
from omlx.service.ending import end_server
from omlx.service.manager import manager
from omlx.settings import Settings

EVERY_S = 3.0
_ANSWER_S = 10.0
_DOING = {"start": "Starting the server…", "stop": "Stopping the server…", "load": "Loading {}…",
          "unload": "Unloading {}…"}  # fmt: skip


class Control:
    """One server, seen from the menu bar. `run` until `end`."""

    def __init__(self, settings: Settings, show: Callable[[ServerState], None]) -> None:
        self._settings = settings
        self._client = Client.for_settings(settings)
        self._show = show
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        self._doing = self._complaint = ""
        self.startable = may_start(self._settings)
        self.seen = ServerState(url=self._client.url, startable=self.startable)

    def run(self, *, start: bool) -> None:
        """Look until `end`; the loop's thread. `start`: begin by starting a server where none runs."""
        self._loop.run_until_complete(self._run(start))
        self._loop.close()

    def end(self) -> None:
        """From any thread."""
        self._loop.call_soon_threadsafe(self._ended.set)

    def click(self, act: Act) -> None:
        """From any thread. One thing at a time: a click while another is being done counts for nothing."""
        self._loop.call_soon_threadsafe(self._begin, act)

    async def _run(self, start: bool) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        async with self._client:
            await self._look()
            if start and self.seen.overview is None and not self.seen.trouble and self.startable:
                self._begin(Act("start"))
            while not self._ended.is_set():
                try:
                    await asyncio.wait_for(self._ended.wait(), EVERY_S)
                except TimeoutError:
                    await self._look()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, act: Act) -> None:
        if self._doing:
            return
        task = self._loop.create_task(self._do(act))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _do(self, act: Act) -> None:
        self._doing, self._complaint = _DOING.get(act.kind, "").format(act.model), ""
        if self._doing:
            await self._look()
        try:
            await self._perform(act)
        except (UserError, OSError) as error:
            self._complaint = str(error)
        finally:
            self._doing = ""
        await self._look()

    async def _perform(self, act: Act) -> None:
        match act.kind:
            case "start":
                await self._start()
            case "stop":
                await end_server(self._client, self._settings)
            case "load":
                await self._client.load(act.model)
            case "unload":
                await self._client.unload(act.model)
            case "pin" | "unpin":
                self._complaint = await self._client.pin(act.model, act.kind == "pin")
            case "login":
                login.switch(not login.is_on())

    async def _start(self) -> None:
        """By the service manager where it holds the server, else in the background as any command does."""
        held_by = manager()
        if held_by.state().installed and held_by.state().known:
            await asyncio.to_thread(held_by.start)
        else:
            await start_server(self._client, self._settings, _log)

    async def _look(self) -> None:
        seen = ServerState(
            url=self._client.url, startable=self.startable, at_login=login.is_on(), doing=self._doing,
            complaint=self._complaint,
        )  # fmt: skip
        try:
            async with asyncio.timeout(_ANSWER_S):
                seen = await self._asked(seen)
        except Unreachable:
            pass
        except TimeoutError:
            seen = msgspec.structs.replace(seen, trouble="The server does not answer")
        except ClientError as error:
            seen = msgspec.structs.replace(seen, trouble=str(error))
        self.seen = seen
        self._show(seen)

    async def _asked(self, seen: ServerState) -> ServerState:
        if not await self._client.alive():
            return msgspec.structs.replace(seen, trouble="Ollama runs here, not oMLX")
        overview, models, status = await asyncio.gather(
            self._client.overview(), self._client.tags(), self._client.status()
        )
        return msgspec.structs.replace(
            seen, overview=overview, models=tuple(model.name for model in models), pinned=frozenset(status.pinned)
        )


def _log(text: str) -> None:
    sys.stderr.write(f"{text}\n")
