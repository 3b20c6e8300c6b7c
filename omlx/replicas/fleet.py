"""The replicas as they are now: looked at every two seconds, and again at once when a request fails there."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec

from omlx.protocols.admin.wire import StatusResponse
from omlx.replicas.choice import View, full_name
from omlx.urls import without_credentials

log = logging.getLogger("omlx.server")

EVERY_S = 2.0
_ANSWER_S = 3.0
_CONNECT_S = 3.0


class Replica:
    """One server. `load` is what we have sent there and what others have, by its own account."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.name = without_credentials(self.url)
        """The URL as clients and the log may see it."""
        self.healthy = False
        self.models: frozenset[str] = frozenset()
        self.tags: list[dict[str, Any]] = []
        self.running: list[dict[str, Any]] = []
        self.ours = 0
        self._others = 0

    @property
    def view(self) -> View:
        return View(url=self.url, models=self.models, load=self.ours + self._others)

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """A request is there."""
        self.ours += 1
        try:
            yield
        finally:
            self.ours -= 1

    async def look(self, client: httpx.AsyncClient) -> None:
        """Ask the server how it is; an Ollama server knows less about itself."""
        try:
            tags, running, status = await asyncio.gather(
                *(
                    client.get(self.url + path, timeout=_ANSWER_S)
                    for path in ("/api/tags", "/api/ps", "/api/omlx/status")
                )
            )
            self.tags = tags.raise_for_status().json().get("models") or []
            self.running = running.raise_for_status().json().get("models") or []
        except (httpx.HTTPError, ValueError) as error:
            if self.healthy:
                log.warning("replica %s does not answer: %s", self.name, reason(error))
            self.healthy = False
            return
        self.models = frozenset(full_name(model.get("name")) for model in self.tags)
        self._others = max(0, _open(status) - self.ours)
        if not self.healthy:
            log.info("replica %s answers, with %d model(s)", self.name, len(self.models))
        self.healthy = True


def reason(error: Exception) -> str:
    """For the log; the HTTP client names URLs."""
    return without_credentials(str(error)) or type(error).__name__


def _open(status: httpx.Response) -> int:
    """Requests that run or wait at an oMLX server; 0 for another."""
    if status.status_code != 200:
        return 0
    try:
        response = msgspec.json.decode(status.content, type=StatusResponse)
    except msgspec.MsgspecError:
        return 0
    return response.waiting + sum(model.running for model in response.models)


class Fleet:
    """All replicas, and the one HTTP client that talks to them."""

    def __init__(self, urls: Sequence[str]) -> None:
        """Raises ValueError where one is no http URL of a server."""
        for url in urls:
            parts = urlsplit(url)
            if parts.scheme not in {"http", "https"} or not parts.hostname or parts.path not in {"", "/"}:
                raise ValueError(f"{without_credentials(url)} is no URL of a server, such as http://studio.local:11434")
        self.replicas = [Replica(url) for url in urls]
        # Replies may be silent for as long as a model loads; a connection that cannot be made is noticed at once.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        timeout = httpx.Timeout(None, connect=_CONNECT_S)
        self.client = httpx.AsyncClient(timeout=timeout, limits=limits, trust_env=False, follow_redirects=False)
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.look()
        self._watching = asyncio.create_task(self._watch(), name="replicas")

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self.client.aclose()

    async def look(self) -> None:
        await asyncio.gather(*(replica.look(self.client) for replica in self.replicas))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                await self.look()
            except Exception:
                log.exception("the replicas could not be looked at")

    @property
    def healthy(self) -> list[Replica]:
        return [replica for replica in self.replicas if replica.healthy]
