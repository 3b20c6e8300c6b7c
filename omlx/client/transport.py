"""The client's transport: HTTP requests to one server, and its responses decoded.

Whatever goes wrong is a ClientError; `Unreachable` where nobody listens.
"""

from __future__ import annotations

import ipaddress
import platform
import sys
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

import msgspec

from omlx import __version__
from omlx.client.errors import ClientError, ErrorBody, Unreachable, raise_for_status
from omlx.urls import without_credentials

if TYPE_CHECKING:
    import httpx

CONNECT_TIMEOUT_S = 5.0

Body = Mapping[str, Any]
Chunk = TypeVar("Chunk")
Reply = TypeVar("Reply")


class Transport:
    """One server. Safe for concurrent calls of one event loop. ClientError where `url` is no address."""

    def __init__(self, url: str, api_key: str) -> None:
        # httpx takes a quarter of a second to import, and `--help` gets by without it.
        import httpx

        try:
            # Reading the host decodes it, which raises as well where the address is invalid.
            valid = bool(httpx.URL(url).host)
        except (httpx.InvalidURL, UnicodeError):
            valid = False
        if not valid:
            shown = without_credentials(url)
            raise ClientError(f"{shown} is no address of a server: it must be like http://127.0.0.1:11434")
        self.url = url
        self._http = httpx.AsyncClient(
            base_url=url,
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
            # HTTP_PROXY is set for the outside world; a server on this machine is never behind it.
            trust_env=not is_loopback(url),
            # Reading the certificate store takes longer than the call; plain HTTP has no use for it.
            verify=url.startswith("https:"),
            headers={
                "User-Agent": f"omlx/{__version__} ({platform.machine()} {sys.platform})",
                "Content-Type": "application/json",
                "Accept": "application/json",
                **({"Authorization": f"Bearer {api_key}"} if api_key else {}),
            },
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def send(self, method: str, path: str, body: Body | AsyncIterator[bytes] | None = None) -> httpx.Response:
        """The response to one request, whatever its status."""
        content = msgspec.json.encode(body) if isinstance(body, Mapping) else body
        return await self._guarded(self._http.request(method, path, content=content))

    async def checked(self, method: str, path: str, body: Body | AsyncIterator[bytes] | None) -> bytes:
        """The body of the response."""
        response = await self.send(method, path, body)
        await raise_for_status(response)
        return response.content

    async def call(self, method: str, path: str, body: Body | None, reply: type[Reply]) -> Reply:
        """The response, decoded."""
        content = await self.checked(method, path, body)
        try:
            return msgspec.json.decode(content, type=reply)
        except msgspec.DecodeError as error:
            raise ClientError(f"the server's answer to {path} cannot be read: {error}") from error

    async def stream(
        self, path: str, body: Body, kind: type[Chunk], *, until_done: bool = False
    ) -> AsyncIterator[Chunk]:
        """The lines of the response, decoded. `until_done`: one of them must say `done`. Closing it ends the call."""
        decoder = msgspec.json.Decoder(kind)
        done = False
        try:
            async with self.open("POST", path, body, accept="application/x-ndjson", streaming=True) as response:
                async for line in self.lines(response):
                    if b'"error"' in line and (message := msgspec.json.decode(line, type=ErrorBody).message):
                        raise ClientError(message)
                    chunk = decoder.decode(line)
                    done = done or getattr(chunk, "done", False)
                    yield chunk
        except msgspec.DecodeError as error:
            raise ClientError(f"the server sent a line that cannot be read: {error}") from error
        if until_done and not done:
            raise ClientError("the server ended the answer before it was complete")

    @asynccontextmanager
    async def open(
        self, method: str, path: str, body: Body | None = None, *, accept: str = "", streaming: bool = False
    ) -> AsyncIterator[httpx.Response]:
        """A response whose body is still to be read. `streaming`: see ClientError."""
        content = None if body is None else msgspec.json.encode(body)
        request = self._http.build_request(method, path, content=content, headers={"Accept": accept} if accept else {})
        async with self._opened(request, streaming=streaming) as response:
            yield response

    @asynccontextmanager
    async def open_form(
        self, path: str, file: tuple[str, bytes], fields: Mapping[str, str]
    ) -> AsyncIterator[httpx.Response]:
        """The response to a form with a file (name and content), as in `open`."""
        kind = f"multipart/form-data; boundary={uuid4().hex}"
        request = self._http.build_request(
            "POST", path, files={"file": file}, data=fields, headers={"Content-Type": kind}
        )
        async with self._opened(request) as response:
            yield response

    @asynccontextmanager
    async def _opened(self, request: httpx.Request, *, streaming: bool = False) -> AsyncIterator[httpx.Response]:
        response = await self._guarded(self._http.send(request, stream=True))
        try:
            await raise_for_status(response, streaming=streaming)
            yield response
        finally:
            await response.aclose()

    async def lines(self, response: httpx.Response) -> AsyncIterator[bytes]:
        """Lines of a body, split at "\\n" only: JSON text may hold U+2028 and other line ends of Unicode."""
        import httpx

        pending = b""
        try:
            async for data in response.aiter_bytes():
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    if line.strip():
                        yield line
        except httpx.TransportError as error:
            raise ClientError(f"the connection to {self.url} broke before the answer was complete") from error
        if pending.strip():
            yield pending

    async def _guarded(self, response: Awaitable[httpx.Response]) -> httpx.Response:
        import httpx

        try:
            return await response
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise Unreachable(
                f"could not connect to the server at {self.url}: {error or 'no answer in time'}"
            ) from error
        except httpx.HTTPError as error:
            raise ClientError(
                f"the server at {self.url} gave no proper answer: {error or type(error).__name__}"
            ) from error


def is_loopback(url: str) -> bool:
    """True if the URL names this machine only."""
    host = urlsplit(url).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
