"""Write docs/openapi.json: every route with its method, and the fields of what it reads and answers where it is JSON.

Litestar would make such a document from handlers' signatures, but ours read bodies themselves, as Go does; the wire
structs say more. `make docs` runs it. Answers that are streams (NDJSON, SSE) are described by their lines.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from litestar import Litestar
from omlx_registry import Registry

from docs.compatibility import ROUTES
from omlx import __version__
from omlx.api import admin, anthropic, openai, openai_responses, rerank
from omlx.api import cache as cachewire
from omlx.api import ollama as wire
from omlx.pool import Pool
from omlx.selftest.result import SelfTestRequest, SelfTestResponse
from omlx.server.app import create_app, paths
from omlx.settings import Settings

PAGE = Path(__file__).with_name("openapi.json")
Struct = type[msgspec.Struct]

KNOWN: dict[str, tuple[Struct | None, Struct | None]] = {
    **{route.path: (route.asked, route.answer) for route in ROUTES},
    "/api/tags": (None, wire.ListResponse),
    "/api/ps": (None, wire.ProcessResponse),
    "/v1/chat/completions": (openai.ChatCompletionRequest, None),
    "/v1/completions": (openai.CompletionRequest, None),
    "/v1/embeddings": (openai.EmbedRequest, None),
    "/v1/responses": (openai_responses.ResponsesRequest, None),
    "/v1/messages": (anthropic.MessagesRequest, None),
    "/v1/messages/count_tokens": (anthropic.CountRequest, None),
    **dict.fromkeys(("/v1/rerank", "/rerank", "/v2/rerank"), (rerank.RerankRequest, None)),
    "/api/omlx/status": (None, admin.StatusResponse),
    "/api/omlx/pin": (admin.PinRequest, admin.PinResponse),
    "/api/omlx/verify": (admin.VerifyRequest, admin.VerifyResponse),
    "/api/omlx/prune": (None, admin.PruneResponse),
    "/api/omlx/search": (None, admin.SearchResponse),
    "/api/omlx/selftest": (SelfTestRequest, SelfTestResponse),
    "/api/omlx/cache": (None, cachewire.CacheResponse),
    "/api/omlx/cache/folder": (None, cachewire.CacheFolder),
    "/api/omlx/cache/clear": (cachewire.CacheClearRequest, cachewire.CacheCleared),
    "/api/omlx/cache/verify": (None, cachewire.CacheVerified),
    "/api/omlx/cache/explain": (cachewire.CacheExplainRequest, cachewire.CacheExplanation),
    "/api/omlx/cache/save": (cachewire.CacheSaveRequest, cachewire.CacheSaved),
    "/api/omlx/cache/load": (cachewire.CacheSessionRequest, cachewire.CacheLoaded),
}


def document() -> dict[str, Any]:
    """The whole document, of the routes that the server has."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(models=folder, spare_runner=False)
        table = paths(_litestar(settings, Path(folder)))
    kinds = [kind for pair in KNOWN.values() for kind in pair if kind is not None]
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    told = dict(zip(kinds, schemas, strict=True))
    return {
        "openapi": "3.1.0",
        "info": {"title": "oMLX", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": {path: _item(path, methods, told) for path, methods in sorted(table.items())},
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
    names = [part[1:-1].partition(":")[0] for part in path.split("/") if part.startswith("{")]
    item: dict[str, Any] = {}
    for method in sorted(set(methods)):
        answers: dict[str, Any] = {"200": {"description": "Done"}, "default": {"description": "An error, as JSON"}}
        if answer is not None and method != "HEAD":
            answers["200"]["content"] = {"application/json": {"schema": told[answer]}}
        operation: dict[str, Any] = {"responses": answers}
        if names:
            operation["parameters"] = [
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
            ]
        if asked is not None and method not in ("GET", "HEAD"):
            operation["requestBody"] = {"content": {"application/json": {"schema": told[asked]}}}
        item[method.lower()] = operation
    return item


def page() -> str:
    return json.dumps(document(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
