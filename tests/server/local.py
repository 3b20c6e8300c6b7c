"""The whole server in this process: real uvicorn on a port of its own, real registry and pool, any runner program."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import httpx
import uvicorn
import uvloop
from omlx_registry import Name, Overrides, Progress, PullError, Registry, Store, Texts

from omlx.pool import Pool
from omlx.runner.process import RUNNER
from omlx.runner.template_check import check_chat_templates, check_go_template
from omlx.server.app import create_app
from omlx.server.connection import Connection
from omlx.server.connection_limits import Connections
from omlx.settings import Settings
from tests.support.tiny import DATA

SCRIPTED = (sys.executable, str(Path(__file__).with_name("scripted_runner.py")))
T = TypeVar("T")

MODELS: dict[str, tuple[Texts, Overrides]] = {
    "thinker": (Texts(), Overrides()),
    "plain": (
        Texts(
            template="{{ .System }}{{ .Prompt }}",
            system="Be kind.",
            parameters={"temperature": 0.5, "stop": ["END"]},
            messages=[{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}],
            licenses=["Free."],
        ),
        Overrides(),
    ),
    "eyes": (Texts(template="{{ .Prompt }}"), Overrides(capabilities=["completion", "vision"])),
    "embedder": (Texts(template="{{ .Prompt }}{{/* e */}}"), Overrides(capabilities=["embedding"])),
    "qwen3": (Texts(), Overrides(family="qwen3")),
    "qwen3:plain": (Texts(template="{{ .Prompt }}"), Overrides(family="qwen3")),
}
"""Different faces of one tiny model; the scripted runner never opens it."""


class ScriptedSource:
    """Offers models named `remote…`; pulling one sends two lines and then, for `remote-broken`, fails."""

    pulling: ClassVar[set[str]] = set()

    def offers(self, name: Name) -> bool:
        return name.model.startswith("remote")

    async def pull(self, name: Name, store: Store, *, insecure: bool) -> AsyncGenerator[Progress]:
        self.pulling.add(name.model)
        try:
            yield Progress("pulling 6a0746a1ec1a", "sha256:6a0746a1ec1a" + "0" * 52, 100, 0)
            yield Progress("pulling 6a0746a1ec1a", "sha256:6a0746a1ec1a" + "0" * 52, 100, 100)
            if name.model == "remote-broken":
                raise PullError("pull model manifest: unauthorized: access denied")
            while name.model == "remote-endless":
                await asyncio.sleep(0.01)
        finally:
            self.pulling.discard(name.model)


def stocked(root: Path) -> Registry:
    """A registry that holds MODELS, with ScriptedSource as the outside world."""
    checks = {"check_template": check_go_template, "check_chat": check_chat_templates}
    registry = Registry(root, [ScriptedSource()], **checks)
    for name, (texts, overrides) in MODELS.items():
        registry.add_model_folder(name, DATA / "taught-llama", texts=texts, overrides=overrides, transfer="copy")
    return registry


def eventually(holds: Callable[[], bool], timeout_s: float = 120.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.01)
    return False


class LocalServer:
    """Use as a context manager. `pool` belongs to the server's own event loop: reach it through `ask`."""

    def __init__(
        self,
        registry: Registry,
        settings: Settings,
        command: tuple[str, ...] = tuple(RUNNER),
        limits: Connections | None = None,
    ) -> None:
        self.registry = registry
        self.pool = Pool(settings, command=command)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        app = create_app(settings, registry, self.pool)
        self.telemetry, self.memory = app.telemetry, app.body_memory
        http: Any = partial(Connection, limits=limits or Connections(4096))
        config = uvicorn.Config(app, http=http, log_config=None, access_log=False, timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="local server")

    def _run(self) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            await self._server.serve(sockets=[self._listener])

        uvloop.run(serve())

    def __enter__(self) -> Self:
        self._thread.start()
        while not self._server.started:
            if not self._thread.is_alive():
                raise RuntimeError("the server did not start")
            threading.Event().wait(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(120)
        assert not self._thread.is_alive()

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=120, trust_env=False)

    def ask(self, question: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of a coroutine function, run on the server's loop."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(question(), self._loop).result(120)

    def running(self) -> int:
        """Requests that runners say they work on."""

        async def count() -> int:
            return sum(model.running for model in self.pool.loaded())

        return self.ask(count)
