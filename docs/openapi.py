"""Write docs/openapi.json: every route with its method, and the fields of what it reads and answers where it is JSON.

Litestar would make such a document from handlers' signatures, but ours read bodies themselves, as Go does; the wire
structs say more. `make docs` runs it. Streams are named by their content type (NDJSON, SSE); `tests/fuzz/api.py`
holds the server to the document.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from litestar import Litestar
from omlx_registry import Registry

from docs.compatibility import ROUTES
from omlx import __version__
from omlx.messages.selftest import SelfTestRequest, SelfTestResponse
from omlx.pool import Pool
from omlx.protocols.admin import cache as cachewire
from omlx.protocols.admin import overview
from omlx.protocols.admin import wire as admin
from omlx.protocols.anthropic import wire as anthropic
from omlx.protocols.ollama import models as models_wire
from omlx.protocols.openai import audio_wire
from omlx.protocols.openai import responses_wire as openai_responses
from omlx.protocols.openai import wire as openai
from omlx.protocols.rerank import wire as rerank
from omlx.server.app import create_app
from omlx.server.route_info import routes_of
from omlx.settings import Settings

PAGE = Path(__file__).with_name("openapi.json")
Struct = type[msgspec.Struct]

KNOWN: dict[str, tuple[Struct | None, Struct | None]] = {
    **{route.path: (route.asked, route.answer) for route in ROUTES},
    "/api/tags": (None, models_wire.ListResponse),
    "/api/ps": (None, models_wire.ProcessResponse),
    "/v1/chat/completions": (openai.ChatCompletionRequest, openai.ChatCompletion),
    "/v1/completions": (openai.CompletionRequest, openai.Completion),
    "/v1/embeddings": (openai.EmbeddingsRequest, openai.EmbeddingList),
    **dict.fromkeys(("/v1/audio/transcriptions", "/v1/audio/translations"), (None, audio_wire.VerboseTranscription)),
    "/v1/models": (None, openai.ModelList),
    "/v1/models/{name:path}": (None, openai.Model),
    "/v1/responses": (openai_responses.ResponsesRequest, openai_responses.Response),
    "/v1/messages": (anthropic.MessagesRequest, anthropic.AnthropicMessage),
    "/v1/messages/count_tokens": (anthropic.CountRequest, anthropic.TokenCount),
    **dict.fromkeys(("/v1/rerank", "/rerank", "/v2/rerank"), (rerank.RerankRequest, rerank.RerankResponse)),
    "/api/omlx/status": (None, admin.StatusResponse),
    "/api/omlx/context": (None, admin.ContextResponse),
    "/api/omlx/aliases": (admin.AliasRequest, admin.AliasResponse),
    "/api/omlx/pin": (admin.PinRequest, admin.PinResponse),
    "/api/omlx/verify": (admin.VerifyRequest, admin.VerifyResponse),
    "/api/omlx/prune": (admin.PruneRequest, admin.PruneResponse),
    "/api/omlx/search": (None, admin.SearchResponse),
    "/api/omlx/import": (admin.ImportRequest, None),
    "/api/omlx/export": (None, admin.ExportResponse),
    "/api/omlx/importable": (None, admin.ImportableResponse),
    "/api/omlx/outdated": (None, admin.OutdatedResponse),
    "/api/omlx/selftest": (SelfTestRequest, SelfTestResponse),
    "/api/omlx/overview": (None, overview.Overview),
    "/api/omlx/history": (None, overview.History),
    "/api/omlx/requests": (None, overview.RequestList),
    "/api/omlx/pulls": (overview.PullStart, overview.PullStarted),
    "/api/omlx/cache": (None, cachewire.CacheResponse),
    "/api/omlx/cache/folder": (None, cachewire.CacheFolder),
    "/api/omlx/cache/clear": (cachewire.CacheClearRequest, cachewire.CacheCleared),
    "/api/omlx/cache/verify": (None, cachewire.CacheVerified),
    "/api/omlx/cache/explain": (cachewire.CacheExplainRequest, cachewire.CacheExplanation),
    "/api/omlx/cache/save": (cachewire.CacheSaveRequest, cachewire.CacheSaved),
    "/api/omlx/cache/load": (cachewire.CacheSessionRequest, cachewire.CacheLoaded),
    "/api/omlx/cache/rm": (cachewire.CacheSessionRequest, None),
}

STREAMS = {
    **dict.fromkeys(("/api/generate", "/api/chat", "/api/pull", "/api/push", "/api/create"), "application/x-ndjson"),
    "/api/omlx/import": "application/x-ndjson",
    "/api/omlx/export/file": "application/octet-stream",
    **dict.fromkeys(
        ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/api/omlx/events"),
        "text/event-stream",
    ),
    **dict.fromkeys(("/v1/audio/transcriptions", "/v1/audio/translations"), "text/event-stream"),
}
"""What some or all answers of a route are, beside JSON."""

TEXTS = {
    "/": ("text/plain", "text/html"),
    "/metrics": ("text/plain", "application/openmetrics-text"),
    **dict.fromkeys(
        ("/v1/audio/transcriptions", "/v1/audio/translations"), ("text/plain", "application/x-subrip", "text/vtt")
    ),
}

_AUDIO_FORM = {
    "type": "object",
    "required": ["file", "model"],
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "model": {"type": "string"},
        "language": {"type": "string"},
        "prompt": {"type": "string"},
        "response_format": {"type": "string", "enum": ["json", "text", "srt", "vtt", "verbose_json"]},
        "temperature": {"type": "number", "minimum": 0, "maximum": 1},
        "timestamp_granularities[]": {"type": "array", "items": {"type": "string", "enum": ["segment", "word"]}},
        "stream": {"type": "boolean"},
        "progress": {"type": "boolean"},
    },
}
FORMS: dict[str, dict[str, Any]] = dict.fromkeys(("/v1/audio/transcriptions", "/v1/audio/translations"), _AUDIO_FORM)
"""What a route reads that takes no JSON but a form."""

QUERIES: dict[str, dict[str, dict[str, Any]]] = {
    "/api/omlx/search": {"q": {"type": "string"}, "limit": {"type": "integer", "default": 20}},
    "/api/omlx/context": {"model": {"type": "string"}},
    "/api/omlx/export": {"model": {"type": "string"}},
    "/api/omlx/export/file": {"model": {"type": "string"}, "path": {"type": "string"}},
}


def document() -> dict[str, Any]:
    """The whole document, of the routes that the server has."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(models=folder, spare_runner=False)
        table = {path: info.methods for path, info in routes_of(_litestar(settings, Path(folder))).items()}
    kinds = [kind for pair in KNOWN.values() for kind in pair if kind is not None]
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    told = dict(zip(kinds, schemas, strict=True))
    for component in components.values():
        # The struct holds seconds; what is sent may be a text like "5m", too.
        component.get("properties", {}).get("keep_alive", {}).get("anyOf", []).append({"type": "string"})
    return {
        "openapi": "3.1.0",
        "info": {"title": "oMLX", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": {_plain(path): _item(path, methods, told) for path, methods in sorted(table.items())},
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _litestar(settings: Settings, folder: Path) -> Litestar:
    app = create_app(settings, Registry(folder, []), Pool(settings)).app
    assert isinstance(app, Litestar)
    return app


def _item(path: str, methods: Sequence[str], told: dict[Struct, dict[str, Any]]) -> dict[str, Any]:
    asked, answer = KNOWN.get(path, (None, None))
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": kind}} for name, kind in _held(path)
    ]
    parameters += [{"name": name, "in": "query", "schema": schema} for name, schema in QUERIES.get(path, {}).items()]
    item: dict[str, Any] = {}
    for method in sorted(set(methods)):
        answers = {"200": {"description": "Done"}, "default": {"description": "An error", "content": _ERROR}}
        if method == "HEAD":
            answers = {"200": {"description": "Done"}, "default": {"description": "An error"}}
        elif content := _content(path, None if answer is None else told[answer]):
            answers["200"]["content"] = content
        operation: dict[str, Any] = {"responses": answers}
        if parameters:
            operation["parameters"] = parameters
        if asked is not None and method not in ("GET", "HEAD"):
            operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": told[asked]}}}
        if path in FORMS and method not in ("GET", "HEAD"):
            operation["requestBody"] = {"required": True, "content": {"multipart/form-data": {"schema": FORMS[path]}}}
        item[method.lower()] = operation
    return item


_ERROR = {"application/json": {"schema": {"type": "object"}}}
"""Each dialect has its envelope; what they share is that they are objects."""


def _plain(path: str) -> str:
    """Litestar's `{name:type}` as OpenAPI writes it."""
    return re.sub(r":\w+}", "}", path)


def _held(path: str) -> list[tuple[str, str]]:
    """The names in a route's path and their types in JSON."""
    parts = [part[1:-1].partition(":") for part in path.split("/") if part.startswith("{")]
    return [(name, "integer" if kind == "int" else "string") for name, _, kind in parts]


def _content(path: str, schema: dict[str, Any] | None) -> dict[str, Any]:
    """What an answer may be, by content type."""
    content: dict[str, Any] = {kind: {} for kind in TEXTS.get(path, ())}
    if schema is not None:
        content["application/json"] = {"schema": schema}
    if path in STREAMS:
        content[STREAMS[path]] = {}
    return content


def page() -> str:
    return json.dumps(document(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
