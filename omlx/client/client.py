"""The client: a typed asynchronous caller of our own HTTP API, and the only thing the command line knows of a server.

It speaks Ollama's dialect, so it works against a genuine Ollama as well.
One error type leaves it: `ClientError`, whose text is what a user should read. `Unreachable` is the case where
nobody listens, which callers may cure by starting a server.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

import msgspec

from omlx.client.errors import ClientError, ErrorBody, raise_for_status
from omlx.client.transport import Body, Transport
from omlx.messages.selftest import Check, SelfTestResponse
from omlx.protocols.admin import cache as cachewire
from omlx.protocols.admin import wire as admin
from omlx.protocols.admin.overview import Overview
from omlx.protocols.ollama import models as models_wire
from omlx.protocols.ollama import wire as wire
from omlx.protocols.openai import audio_wire
from omlx.settings import Settings, client_url

CHUNK_BYTES = 1 << 20
"""How much of a file is read and sent at once."""

VERSION_HEADER = "x-omlx-version"


class Version(msgspec.Struct):
    """`version` is the Ollama version the server stands for, `omlx_version` its own ("" from a genuine Ollama)."""

    version: str
    omlx_version: str = ""


class ImportLine(models_wire.StatusLine):
    """One line of an import; the last one about a model has an outcome: imported, present, planned or refused."""

    model: str = ""
    outcome: str = ""
    bytes: int = 0
    seconds: int = 0


Heard = audio_wire.TranscriptTextDelta | audio_wire.TranscriptProgress | audio_wire.TranscriptVerboseDone
"""An event of a transcription."""


class Client:
    """One server. Use as `async with Client(url) as client:`; safe for concurrent calls of one event loop.

    ClientError where `url` is no address.
    """

    def __init__(self, url: str, *, api_key: str = "") -> None:
        self.url = url
        self._http = Transport(url, api_key)

    @classmethod
    def for_settings(cls, settings: Settings) -> Self:
        """A client for the server that has these settings; it takes any of its own keys."""
        return cls(client_url(settings), api_key=next(iter(settings.api_key), ""))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.close()

    async def alive(self) -> str:
        """The oMLX version of the server that answers, "" for a genuine Ollama.

        Raises Unreachable if nobody listens, ClientError if something else does.
        """
        response = await self._http.send("HEAD", "/")
        if response.status_code >= 400:
            raise ClientError(
                f"what listens at {self.url} is no oMLX or Ollama server: it answered {response.status_code}"
            )
        return str(response.headers.get(VERSION_HEADER, ""))

    async def version(self) -> Version:
        return await self._http.call("GET", "/api/version", None, Version)

    async def tags(self) -> list[models_wire.ListedModel]:
        """The models on disk, newest first."""
        return (await self._http.call("GET", "/api/tags", None, models_wire.ListResponse)).models

    async def loaded(self) -> list[models_wire.ProcessModelResponse]:
        """The models in memory, the one that stays longest first."""
        return (await self._http.call("GET", "/api/ps", None, models_wire.ProcessResponse)).models

    async def show(self, model: str, *, verbose: bool = False) -> models_wire.ShowResponse:
        return await self._http.call(
            "POST", "/api/show", {"model": model, "verbose": verbose}, models_wire.ShowResponse
        )

    async def contexts(self, model: str) -> admin.ContextResponse:
        """The context in tokens that the model is served with, and the most there is memory for."""
        return await self._http.call(
            "GET", f"/api/omlx/context?{urlencode({'model': model})}", None, admin.ContextResponse
        )

    async def copy(self, source: str, destination: str) -> None:
        await self._http.checked("POST", "/api/copy", {"source": source, "destination": destination})

    async def delete(self, model: str) -> int | None:
        """Delete a model; returns the bytes freed, None where the server does not say."""
        response = await self._http.send("DELETE", "/api/delete", {"model": model})
        await raise_for_status(response)
        freed = response.headers.get("X-Omlx-Freed", "")
        return int(freed) if freed.isdigit() else None

    async def load(self, model: str, **fields: Any) -> None:
        """Load a model without asking it anything. `fields` as in /api/generate (keep_alive, think, options)."""
        await self._http.call("POST", "/api/generate", {"model": model, "prompt": "", **fields}, wire.GenerateResponse)

    async def unload(self, model: str) -> None:
        await self.load(model, keep_alive=0)

    async def embed(self, model: str, text: str, **fields: Any) -> list[float]:
        """The embedding of one text. `fields` as in /api/embed (truncate, dimensions, keep_alive)."""
        reply = await self._http.call(
            "POST", "/api/embed", {"model": model, "input": text, **fields}, wire.EmbedResponse
        )
        return reply.embeddings[0] if reply.embeddings else []

    def generate(self, body: Body) -> AsyncIterator[wire.GenerateResponse]:
        """Stream an answer; `body` as in /api/generate. Closing the iterator cancels the request."""
        return self._http.stream("/api/generate", body, wire.GenerateResponse, until_done=True)

    def chat(self, body: Body) -> AsyncIterator[wire.ChatResponse]:
        """Stream an answer; `body` as in /api/chat. Closing the iterator cancels the request."""
        return self._http.stream("/api/chat", body, wire.ChatResponse, until_done=True)

    async def transcribe(self, file: tuple[str, bytes], fields: Mapping[str, str]) -> AsyncIterator[Heard]:
        """Stream the transcription of a file (name, content); `fields` of the form. Closing the iterator cancels it."""
        decoder = msgspec.json.Decoder(Heard)
        try:
            async with self._http.open_form("/v1/audio/transcriptions", file, fields) as response:
                async for line in self._http.lines(response):
                    data = line.removeprefix(b"data: ")
                    if data.startswith(b'{"error"'):
                        raise ClientError(msgspec.json.decode(data, type=ErrorBody).message)
                    yield decoder.decode(data)
        except msgspec.DecodeError as error:
            raise ClientError(f"the server sent a line that cannot be read: {error}") from error

    def pull(self, model: str, *, insecure: bool = False) -> AsyncIterator[models_wire.StatusLine]:
        return self._http.stream("/api/pull", {"model": model, "insecure": insecure}, models_wire.StatusLine)

    def push(self, model: str, *, insecure: bool = False) -> AsyncIterator[models_wire.StatusLine]:
        return self._http.stream("/api/push", {"model": model, "insecure": insecure}, models_wire.StatusLine)

    def create(self, body: Body) -> AsyncIterator[models_wire.StatusLine]:
        """Make a model; `body` as in /api/create."""
        return self._http.stream("/api/create", body, models_wire.StatusLine)

    async def status(self) -> admin.StatusResponse:
        """What the server is doing."""
        return await self._http.call("GET", "/api/omlx/status", None, admin.StatusResponse)

    async def overview(self) -> Overview:
        """The figures of the dashboard's overview."""
        return await self._http.call("GET", "/api/omlx/overview", None, Overview)

    async def aliases(self) -> dict[str, str]:
        return (await self._http.call("GET", "/api/omlx/aliases", None, admin.AliasResponse)).aliases

    async def set_alias(self, name: str, target: str) -> None:
        """Make `name` an alias of `target` in pulls; an empty target deletes the alias."""
        await self._http.checked("POST", "/api/omlx/aliases", {"name": name, "target": target})

    async def outdated(self) -> list[admin.PulledState]:
        """The models that were pulled, each with the newest commit of its repository."""
        return (await self._http.call("GET", "/api/omlx/outdated", None, admin.OutdatedResponse)).models

    async def search(self, text: str, limit: int) -> list[admin.SearchHit]:
        """MLX models on Hugging Face, most downloaded first."""
        query = urlencode({"q": text, "limit": limit})
        return (await self._http.call("GET", f"/api/omlx/search?{query}", None, admin.SearchResponse)).models

    def import_found(self, body: Body | None = None) -> AsyncIterator[ImportLine]:
        """Take in models that other programs have on the server's machine; `body` as in POST /api/omlx/import."""
        return self._http.stream("/api/omlx/import", body or {}, ImportLine)

    async def export(self, model: str) -> admin.ExportResponse:
        """The Modelfile and the list of files that make a folder of this model."""
        return await self._http.call(
            "GET", f"/api/omlx/export?{urlencode({'model': model})}", None, admin.ExportResponse
        )

    async def download(self, model: str, path: str) -> AsyncIterator[bytes]:
        """The bytes of a file of the model, piece by piece; who reads them compares them with its digest."""
        query = urlencode({"model": model, "path": path})
        async with self._http.open("GET", f"/api/omlx/export/file?{query}") as response:
            async for block in response.aiter_bytes(CHUNK_BYTES):
                yield block

    async def importable(self) -> admin.ImportableResponse:
        """The models of an Ollama on the server's machine that are not the server's yet."""
        return await self._http.call("GET", "/api/omlx/importable", None, admin.ImportableResponse)

    async def pin(self, model: str, pinned: bool) -> str:
        """Pin or unpin; returns a warning where the pins leave too little for other models, else ""."""
        body = {"model": model, "pinned": pinned}
        return (await self._http.call("POST", "/api/omlx/pin", body, admin.PinResponse)).warning

    async def openai_chat(self, body: Body) -> dict[str, Any]:
        """A whole answer of /v1/chat/completions, which can require a tool call."""
        return await self._http.call("POST", "/v1/chat/completions", body, dict[str, Any])

    async def keep_selftest(self, model: str, checks: list[Check]) -> SelfTestResponse:
        """Have the server keep what a self-test found, and act on it; no checks: forget the last one."""
        body = {"model": model, "checks": msgspec.to_builtins(checks)}
        return await self._http.call("POST", "/api/omlx/selftest", body, SelfTestResponse)

    async def prune(self, *, now: bool = False, partial: bool = False, dry_run: bool = False) -> admin.PruneResponse:
        body = {"now": now, "partial": partial, "dry_run": dry_run}
        return await self._http.call("POST", "/api/omlx/prune", body, admin.PruneResponse)

    async def verify(self, *, repair: bool) -> admin.VerifyResponse:
        return await self._http.call("POST", "/api/omlx/verify", {"repair": repair}, admin.VerifyResponse)

    async def cache(self) -> list[cachewire.CacheStats]:
        """The KV stores of the loaded models."""
        return (await self._http.call("GET", "/api/omlx/cache", None, cachewire.CacheResponse)).models

    async def cache_folder(self) -> cachewire.CacheFolder:
        """What the KV store has on disk."""
        return await self._http.call("GET", "/api/omlx/cache/folder", None, cachewire.CacheFolder)

    async def clear_cache(self, model: str) -> cachewire.CacheCleared:
        """Delete a model's stored prefixes, "" for all models; returns how many were on disk, and the models."""
        return await self._http.call("POST", "/api/omlx/cache/clear", {"model": model}, cachewire.CacheCleared)

    async def verify_cache(self) -> cachewire.CacheVerified:
        """Have every record on disk read; what is damaged is removed."""
        return await self._http.call("POST", "/api/omlx/cache/verify", {}, cachewire.CacheVerified)

    async def explain_cache(self, model: str, prompt: str, *, raw: bool) -> cachewire.CacheExplanation:
        body = {"model": model, "prompt": prompt, "raw": raw}
        return await self._http.call("POST", "/api/omlx/cache/explain", body, cachewire.CacheExplanation)

    async def save_session(self, name: str, model: str) -> int:
        """Keep the conversation that the model answered last under a name; returns its tokens."""
        body = {"name": name, "model": model}
        return (await self._http.call("POST", "/api/omlx/cache/save", body, cachewire.CacheSaved)).tokens

    async def load_session(self, name: str) -> cachewire.CacheLoaded:
        """Bring a kept conversation into RAM."""
        return await self._http.call("POST", "/api/omlx/cache/load", {"name": name}, cachewire.CacheLoaded)

    async def remove_session(self, name: str) -> None:
        await self._http.checked("POST", "/api/omlx/cache/rm", {"name": name})

    async def has_blob(self, digest: str) -> bool:
        response = await self._http.send("HEAD", f"/api/blobs/{digest}")
        if response.status_code == HTTPStatus.NOT_FOUND:
            return False
        await raise_for_status(response)
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

        await self._http.checked("POST", f"/api/blobs/{digest}", content())
