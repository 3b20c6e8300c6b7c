"""The client: a typed asynchronous caller of our own HTTP API, and the only thing the command line knows of a server.

It speaks Ollama's dialect, so it works against a genuine Ollama as well.
One error type leaves it: `ClientError`, whose text is what a user should read. `Unreachable` is the case where
nobody listens, which callers may cure by starting a server.
"""

from __future__ import annotations

import ipaddress
import platform
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import urlencode, urlsplit
from uuid import uuid4

import msgspec

from omlx import __version__
from omlx.errors import UserError
from omlx.messages.selftest import Check, SelfTestResponse
from omlx.protocols.admin import cache as cachewire
from omlx.protocols.admin import wire as admin
from omlx.protocols.admin.overview import Overview
from omlx.protocols.ollama import wire as wire
from omlx.protocols.openai import audio_wire
from omlx.settings import Settings, client_url
from omlx.urls import without_credentials

if TYPE_CHECKING:
    import httpx

CHUNK_BYTES = 1 << 20
"""How much of a file is read and sent at once."""

CONNECT_TIMEOUT_S = 5.0
VERSION_HEADER = "x-omlx-version"


class ClientError(UserError):
    """A call failed. `status` is the HTTP status, 0 where there was no answer or the stream had begun.

    `str()` is the sentence to show. Streaming calls put the status line in front ("404 Not Found: model …"), as
    Ollama's do.
    """

    def __init__(self, message: str, *, status: int = 0, streaming: bool = False) -> None:
        self.status = status
        self.message = message
        line = f"{status} {_phrase(status)}" if streaming and status else ""
        super().__init__(f"{line}: {message}" if line and message else message or line)


class Unreachable(ClientError):
    """Nobody listens at the server's address."""


class Version(msgspec.Struct):
    """`version` is the Ollama version the server stands for, `omlx_version` its own ("" from a genuine Ollama)."""

    version: str
    omlx_version: str = ""


class ImportLine(wire.StatusLine):
    """One line of an import; the last one about a model has an outcome: imported, present, planned or refused."""

    model: str = ""
    outcome: str = ""
    bytes: int = 0
    seconds: int = 0


class _OpenAIError(msgspec.Struct):
    message: str = ""


class _ErrorBody(msgspec.Struct):
    error: str | _OpenAIError = ""

    @property
    def message(self) -> str:
        return self.error if isinstance(self.error, str) else self.error.message


Body = Mapping[str, Any]
Heard = audio_wire.TranscriptTextDelta | audio_wire.TranscriptProgress | audio_wire.TranscriptVerboseDone
"""An event of a transcription."""
Chunk = TypeVar("Chunk", wire.GenerateResponse, wire.ChatResponse, wire.StatusLine, ImportLine)
Reply = TypeVar("Reply")


class Client:
    """One server. Use as `async with Client(url) as client:`; safe for concurrent calls of one event loop.

    ClientError where `url` is no address.
    """

    def __init__(self, url: str, *, api_key: str = "") -> None:
        # httpx takes a quarter of a second to import, and `--help` gets by without it.
        import httpx

        try:
            # Reading the host decodes it, which an address that is not one does not survive either.
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

    @classmethod
    def for_settings(cls, settings: Settings) -> Self:
        """A client for the server that has these settings; it takes any of its own keys."""
        return cls(client_url(settings), api_key=next(iter(settings.api_key), ""))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def alive(self) -> str:
        """The oMLX version of the server that answers, "" for a genuine Ollama.

        Raises Unreachable if nobody listens, ClientError if something else does.
        """
        response = await self._send("HEAD", "/")
        if response.status_code >= 400:
            raise ClientError(
                f"what listens at {self.url} is no oMLX or Ollama server: it answered {response.status_code}"
            )
        return str(response.headers.get(VERSION_HEADER, ""))

    async def version(self) -> Version:
        return await self._call("GET", "/api/version", None, Version)

    async def tags(self) -> list[wire.ListedModel]:
        """The models on disk, newest first."""
        return (await self._call("GET", "/api/tags", None, wire.ListResponse)).models

    async def loaded(self) -> list[wire.ProcessModelResponse]:
        """The models in memory, the one that stays longest first."""
        return (await self._call("GET", "/api/ps", None, wire.ProcessResponse)).models

    async def show(self, model: str, *, verbose: bool = False) -> wire.ShowResponse:
        return await self._call("POST", "/api/show", {"model": model, "verbose": verbose}, wire.ShowResponse)

    async def contexts(self, model: str) -> admin.ContextResponse:
        """The context in tokens that the model is served with, and the most there is memory for."""
        return await self._call("GET", f"/api/omlx/context?{urlencode({'model': model})}", None, admin.ContextResponse)

    async def copy(self, source: str, destination: str) -> None:
        await self._checked("POST", "/api/copy", {"source": source, "destination": destination})

    async def delete(self, model: str) -> int | None:
        """Delete a model; returns the bytes freed, None where the server does not say."""
        response = await self._send("DELETE", "/api/delete", {"model": model})
        await _raise_for_status(response)
        freed = response.headers.get("X-Omlx-Freed", "")
        return int(freed) if freed.isdigit() else None

    async def load(self, model: str, **fields: Any) -> None:
        """Load a model without asking it anything. `fields` as in /api/generate (keep_alive, think, options)."""
        await self._call("POST", "/api/generate", {"model": model, "prompt": "", **fields}, wire.GenerateResponse)

    async def unload(self, model: str) -> None:
        await self.load(model, keep_alive=0)

    async def embed(self, model: str, text: str, **fields: Any) -> list[float]:
        """The embedding of one text. `fields` as in /api/embed (truncate, dimensions, keep_alive)."""
        reply = await self._call("POST", "/api/embed", {"model": model, "input": text, **fields}, wire.EmbedResponse)
        return reply.embeddings[0] if reply.embeddings else []

    def generate(self, body: Body) -> AsyncIterator[wire.GenerateResponse]:
        """Stream an answer; `body` as in /api/generate. Closing the iterator cancels the request."""
        return self._stream("/api/generate", body, wire.GenerateResponse, until_done=True)

    def chat(self, body: Body) -> AsyncIterator[wire.ChatResponse]:
        """Stream an answer; `body` as in /api/chat. Closing the iterator cancels the request."""
        return self._stream("/api/chat", body, wire.ChatResponse, until_done=True)

    async def transcribe(self, file: tuple[str, bytes], fields: Mapping[str, str]) -> AsyncIterator[Heard]:
        """Stream what is heard in a file (name and content); `fields` of the form. Closing the iterator cancels it."""
        decoder = msgspec.json.Decoder(Heard)
        kind = f"multipart/form-data; boundary={uuid4().hex}"
        request = self._http.build_request(
            "POST", "/v1/audio/transcriptions", files={"file": file}, data=fields, headers={"Content-Type": kind}
        )
        response = await self._guarded(self._http.send(request, stream=True))
        try:
            await _raise_for_status(response)
            async for line in self._lines(response):
                data = line.removeprefix(b"data: ")
                if data.startswith(b'{"error"'):
                    raise ClientError(msgspec.json.decode(data, type=_ErrorBody).message)
                yield decoder.decode(data)
        except msgspec.DecodeError as error:
            raise ClientError(f"the server sent a line that cannot be read: {error}") from error
        finally:
            await response.aclose()

    def pull(self, model: str, *, insecure: bool = False) -> AsyncIterator[wire.StatusLine]:
        return self._stream("/api/pull", {"model": model, "insecure": insecure}, wire.StatusLine)

    def push(self, model: str, *, insecure: bool = False) -> AsyncIterator[wire.StatusLine]:
        return self._stream("/api/push", {"model": model, "insecure": insecure}, wire.StatusLine)

    def create(self, body: Body) -> AsyncIterator[wire.StatusLine]:
        """Make a model; `body` as in /api/create."""
        return self._stream("/api/create", body, wire.StatusLine)

    async def status(self) -> admin.StatusResponse:
        """What the server is doing."""
        return await self._call("GET", "/api/omlx/status", None, admin.StatusResponse)

    async def overview(self) -> Overview:
        """What the dashboard shows at a glance."""
        return await self._call("GET", "/api/omlx/overview", None, Overview)

    async def aliases(self) -> dict[str, str]:
        return (await self._call("GET", "/api/omlx/aliases", None, admin.AliasResponse)).aliases

    async def set_alias(self, name: str, target: str) -> None:
        """Let `name` mean `target` in pulls; an empty target forgets the name."""
        await self._checked("POST", "/api/omlx/aliases", {"name": name, "target": target})

    async def outdated(self) -> list[admin.PulledState]:
        """The models that were pulled, each with the newest commit of its repository."""
        return (await self._call("GET", "/api/omlx/outdated", None, admin.OutdatedResponse)).models

    async def search(self, text: str, limit: int) -> list[admin.SearchHit]:
        """MLX models on Hugging Face, most downloaded first."""
        query = urlencode({"q": text, "limit": limit})
        return (await self._call("GET", f"/api/omlx/search?{query}", None, admin.SearchResponse)).models

    def import_found(self, body: Body | None = None) -> AsyncIterator[ImportLine]:
        """Take in models that other programs have on the server's machine; `body` as in POST /api/omlx/import."""
        return self._stream("/api/omlx/import", body or {}, ImportLine)

    async def export(self, model: str) -> admin.ExportResponse:
        """The Modelfile and the list of files that make a folder of this model."""
        return await self._call("GET", f"/api/omlx/export?{urlencode({'model': model})}", None, admin.ExportResponse)

    async def download(self, model: str, path: str) -> AsyncIterator[bytes]:
        """The bytes of a file of the model, piece by piece; who reads them compares them with its digest."""
        query = urlencode({"model": model, "path": path})
        request = self._http.build_request("GET", f"/api/omlx/export/file?{query}")
        response = await self._guarded(self._http.send(request, stream=True))
        try:
            await _raise_for_status(response)
            async for block in response.aiter_bytes(CHUNK_BYTES):
                yield block
        finally:
            await response.aclose()

    async def importable(self) -> admin.ImportableResponse:
        """The models of an Ollama on the server's machine that are not the server's yet."""
        return await self._call("GET", "/api/omlx/importable", None, admin.ImportableResponse)

    async def pin(self, model: str, pinned: bool) -> str:
        """Pin or unpin; returns a warning where the pins leave too little for other models, else ""."""
        body = {"model": model, "pinned": pinned}
        return (await self._call("POST", "/api/omlx/pin", body, admin.PinResponse)).warning

    async def openai_chat(self, body: Body) -> dict[str, Any]:
        """A whole answer of /v1/chat/completions, which can require a tool call."""
        return await self._call("POST", "/v1/chat/completions", body, dict[str, Any])

    async def keep_selftest(self, model: str, checks: list[Check]) -> SelfTestResponse:
        """Have the server keep what a self-test found, and act on it; no checks: forget the last one."""
        body = {"model": model, "checks": msgspec.to_builtins(checks)}
        return await self._call("POST", "/api/omlx/selftest", body, SelfTestResponse)

    async def prune(self, *, now: bool = False, partial: bool = False, dry_run: bool = False) -> admin.PruneResponse:
        body = {"now": now, "partial": partial, "dry_run": dry_run}
        return await self._call("POST", "/api/omlx/prune", body, admin.PruneResponse)

    async def verify(self, *, repair: bool) -> admin.VerifyResponse:
        return await self._call("POST", "/api/omlx/verify", {"repair": repair}, admin.VerifyResponse)

    async def cache(self) -> list[cachewire.CacheStats]:
        """The KV stores of the loaded models."""
        return (await self._call("GET", "/api/omlx/cache", None, cachewire.CacheResponse)).models

    async def cache_folder(self) -> cachewire.CacheFolder:
        """What the KV store has on disk."""
        return await self._call("GET", "/api/omlx/cache/folder", None, cachewire.CacheFolder)

    async def clear_cache(self, model: str) -> cachewire.CacheCleared:
        """Forget a model's stored prefixes, "" for all models; tells how many were on disk, and whose they were."""
        return await self._call("POST", "/api/omlx/cache/clear", {"model": model}, cachewire.CacheCleared)

    async def verify_cache(self) -> cachewire.CacheVerified:
        """Have every record on disk read; what is damaged is removed."""
        return await self._call("POST", "/api/omlx/cache/verify", {}, cachewire.CacheVerified)

    async def explain_cache(self, model: str, prompt: str, *, raw: bool) -> cachewire.CacheExplanation:
        body = {"model": model, "prompt": prompt, "raw": raw}
        return await self._call("POST", "/api/omlx/cache/explain", body, cachewire.CacheExplanation)

    async def save_session(self, name: str, model: str) -> int:
        """Keep the conversation that the model answered last under a name; returns its tokens."""
        body = {"name": name, "model": model}
        return (await self._call("POST", "/api/omlx/cache/save", body, cachewire.CacheSaved)).tokens

    async def load_session(self, name: str) -> cachewire.CacheLoaded:
        """Bring a kept conversation into RAM."""
        return await self._call("POST", "/api/omlx/cache/load", {"name": name}, cachewire.CacheLoaded)

    async def remove_session(self, name: str) -> None:
        await self._checked("POST", "/api/omlx/cache/rm", {"name": name})

    async def has_blob(self, digest: str) -> bool:
        response = await self._send("HEAD", f"/api/blobs/{digest}")
        if response.status_code == HTTPStatus.NOT_FOUND:
            return False
        await _raise_for_status(response)
        return True

    async def upload(self, digest: str, path: Path, progress: Callable[[int], None]) -> None:
        """Send a file as a blob; `progress` gets the bytes sent so far."""

        async def content() -> AsyncIterator[bytes]:
            sent = 0
            with path.open("rb") as file:
                while block := file.read(CHUNK_BYTES):
                    yield block
                    sent += len(block)
                    progress(sent)

        await self._checked("POST", f"/api/blobs/{digest}", content())

    async def _send(self, method: str, path: str, body: Body | AsyncIterator[bytes] | None = None) -> httpx.Response:
        content = msgspec.json.encode(body) if isinstance(body, Mapping) else body
        return await self._guarded(self._http.request(method, path, content=content))

    async def _checked(self, method: str, path: str, body: Body | AsyncIterator[bytes] | None) -> bytes:
        response = await self._send(method, path, body)
        await _raise_for_status(response)
        return response.content

    async def _call(self, method: str, path: str, body: Body | None, reply: type[Reply]) -> Reply:
        content = await self._checked(method, path, body)
        try:
            return msgspec.json.decode(content, type=reply)
        except msgspec.DecodeError as error:
            raise ClientError(f"the server's answer to {path} cannot be read: {error}") from error

    async def _stream(
        self, path: str, body: Body, kind: type[Chunk], *, until_done: bool = False
    ) -> AsyncIterator[Chunk]:
        decoder = msgspec.json.Decoder(kind)
        request = self._http.build_request(
            "POST", path, content=msgspec.json.encode(body), headers={"Accept": "application/x-ndjson"}
        )
        response = await self._guarded(self._http.send(request, stream=True))
        done = False
        try:
            await _raise_for_status(response, streaming=True)
            async for line in self._lines(response):
                if b'"error"' in line and (message := msgspec.json.decode(line, type=_ErrorBody).message):
                    raise ClientError(message)
                chunk = decoder.decode(line)
                done = done or getattr(chunk, "done", False)
                yield chunk
        except msgspec.DecodeError as error:
            raise ClientError(f"the server sent a line that cannot be read: {error}") from error
        finally:
            await response.aclose()
        if until_done and not done:
            raise ClientError("the server ended the answer before it was complete")

    async def _lines(self, response: httpx.Response) -> AsyncIterator[bytes]:
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


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


async def _raise_for_status(response: httpx.Response, *, streaming: bool = False) -> None:
    if response.status_code < 400:
        return
    content = await response.aread()
    try:
        message = msgspec.json.decode(content, type=_ErrorBody).message
    except msgspec.DecodeError:
        message = content.decode("utf-8", "replace").strip()
    if not message and not streaming:
        message = f"{response.status_code} {_phrase(response.status_code)}".strip()
    if response.status_code == 401 and "API key" in message:
        message += ": put one of the server's keys into OMLX_API_KEY"
    raise ClientError(message, status=response.status_code, streaming=streaming)
