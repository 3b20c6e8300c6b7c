"""What every route of the server is asked in tests that walk all of them.

A new route makes `tests/server/test_bounded_work.py` fail until it is here: then the largest bodies are tried
on it too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from omlx_registry import Registry

from omlx.pool import Pool
from omlx.server.app import create_app
from omlx.server.route_info import BodyKind, routes_of
from omlx.settings import Settings
from tests.support.tiny import DATA
from tests.support.tiny_encoder import make_encoder
from tests.support.tiny_whisper import as_wav, make_whisper, sound

SAME, OTHER, RANKER, SPEECH = "same", "other", "ranker", "speech"
"""Models: the one that is asked, one that is not, and two for what a chat model does not do."""
BOUNDARY = "----omlx"
_TURN = {"role": "user", "content": "a"}
_STORY = "Tell me a long story of a good fox. " * 40
"""What `cache/save` saves must have been asked before, and not been cleared."""
_FORM = f"multipart/form-data; boundary={BOUNDARY}"


class Asked(NamedTuple):
    """A small request and its status."""

    status: int
    fields: Mapping[str, Any] = {}
    """Of the body, besides those of `common`."""
    model: str = SAME
    path: str = ""
    """With its parameters."""


ASKED: Mapping[str, Asked] = {
    "DELETE /api/delete": Asked(404, model="nope"),
    "DELETE /api/omlx/pulls/{number:int}": Asked(404, path="/api/omlx/pulls/1000000"),
    "DELETE /api/user/keys/{key:str}": Asked(401),
    "DELETE /v1/responses/{name:str}": Asked(404),
    "GET /": Asked(200),
    "GET /api/experimental/model-recommendations": Asked(200),
    "GET /api/omlx/aliases": Asked(200),
    "GET /api/omlx/cache": Asked(200),
    "GET /api/omlx/cache/folder": Asked(200),
    "GET /api/omlx/context": Asked(200, path=f"/api/omlx/context?model={SAME}"),
    "GET /api/omlx/events": Asked(200),
    "GET /api/omlx/export": Asked(200, path=f"/api/omlx/export?model={SAME}"),
    "GET /api/omlx/export/file": Asked(200, path=f"/api/omlx/export/file?model={SAME}&path=model.safetensors"),
    "GET /api/omlx/history": Asked(200),
    "GET /api/omlx/importable": Asked(200),
    "GET /api/omlx/outdated": Asked(200),
    "GET /api/omlx/overview": Asked(200),
    "GET /api/omlx/requests": Asked(200),
    "GET /api/omlx/search": Asked(500, path="/api/omlx/search?q=qwen"),
    "GET /api/omlx/status": Asked(200),
    "GET /api/ps": Asked(200),
    "GET /api/status": Asked(200),
    "GET /api/tags": Asked(200),
    "GET /api/version": Asked(200),
    "GET /dashboard/{name:str}": Asked(200, path="/dashboard/main.js"),
    "GET /health": Asked(200),
    "GET /metrics": Asked(200),
    "GET /ready": Asked(200),
    "GET /v1/models": Asked(200),
    "GET /v1/models/{name:path}": Asked(200, path=f"/v1/models/{SAME}"),
    "GET /v1/responses/{name:str}": Asked(404),
    "POST /api/blobs/{digest:str}": Asked(400),
    "POST /api/chat": Asked(200, {"messages": [_TURN]}),
    "POST /api/copy": Asked(404, {"source": "nope", "destination": "b"}),
    "POST /api/create": Asked(200, {"model": "made", "from": SAME}),
    "POST /api/embed": Asked(200, {"input": "a"}),
    "POST /api/embeddings": Asked(200, {"prompt": "a"}),
    "POST /api/experimental/web_fetch": Asked(403),
    "POST /api/experimental/web_search": Asked(403),
    "POST /api/generate": Asked(200, {"prompt": _STORY}),
    "POST /api/me": Asked(401),
    "POST /api/omlx/aliases": Asked(200, {"name": "b", "target": "nobody/nothing"}),
    "POST /api/omlx/cache/explain": Asked(200, {"prompt": "a"}),
    "POST /api/omlx/cache/load": Asked(404, {"name": "a"}),
    "POST /api/omlx/cache/rm": Asked(404, {"name": "a"}),
    "POST /api/omlx/cache/save": Asked(200, {"name": "b", "prompt": _STORY}),
    "POST /api/omlx/cache/verify": Asked(200),
    "POST /api/omlx/cache/clear": Asked(200),
    "POST /api/omlx/import": Asked(200),
    "POST /api/omlx/pin": Asked(200),
    "POST /api/omlx/prune": Asked(200),
    "POST /api/omlx/pulls": Asked(200, model="nope"),
    "POST /api/omlx/selftest": Asked(200),
    "POST /api/omlx/verify": Asked(200),
    "POST /api/pull": Asked(500, model="nope"),
    "POST /api/push": Asked(404, model="nope"),
    "POST /api/show": Asked(200),
    "POST /api/signout": Asked(401),
    "POST /rerank": Asked(200, {"query": "a", "documents": ["a"]}, RANKER),
    "POST /v1/audio/transcriptions": Asked(200, model=SPEECH),
    "POST /v1/audio/translations": Asked(200, model=SPEECH),
    "POST /v1/chat/completions": Asked(200, {"messages": [_TURN]}),
    "POST /v1/completions": Asked(200, {"prompt": "a"}),
    "POST /v1/embeddings": Asked(200, {"input": "a"}),
    "POST /v1/messages": Asked(200, {"messages": [_TURN]}),
    "POST /v1/messages/count_tokens": Asked(200, {"messages": [_TURN]}),
    "POST /v1/rerank": Asked(200, {"query": "a", "documents": ["a"]}, RANKER),
    "POST /v1/responses": Asked(200, {"input": "a"}),
    "POST /v2/rerank": Asked(200, {"query": "a", "documents": ["a"]}, RANKER),
}
"""Method and path → what it is asked. Statuses other than 200 stand where the work is not wanted in a test."""


class Route(NamedTuple):
    method: str
    path: str
    body: BodyKind

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def asked(self) -> Asked:
        return ASKED[self.name]

    @property
    def url(self) -> str:
        return self.asked.path or re.sub(r"{(\w+):\w+}", r"\1", self.path)

    @property
    def is_form(self) -> bool:
        return self.path.startswith("/v1/audio/")

    def body_with(self, fields: Mapping[str, Any]) -> tuple[bytes, str]:
        """A JSON body and its type: what the route is asked, with these fields."""
        model, small = self.asked.model, self.asked.fields
        common = {"model": model, "stream": False, "max_tokens": 1, "options": {"num_predict": 1}}
        names = {name: small[name] for name in ("model", "name", "from") if name in small}
        return json.dumps(common | dict(small) | dict(fields) | names).encode(), "application/json"

    def small_body(self) -> tuple[bytes, str]:
        if self.is_form:
            return form([("model", "", self.asked.model.encode()), ("file", "a.wav", as_wav(sound(1)))])
        return self.body_with({})


def form(parts: list[tuple[str, str, bytes]]) -> tuple[bytes, str]:
    """A multipart body of (name, file name or "", content), and its type."""
    body = bytearray()
    for name, filename, content in parts:
        file = f'; filename="{filename}"' if filename else ""
        body += f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode()
        body += content + b"\r\n"
    return bytes(body) + f"--{BOUNDARY}--\r\n".encode(), _FORM


def all_routes(folder: Path) -> list[Route]:
    """Every method and path of the application, as it is served."""
    settings = Settings(models=str(folder), spare_runner=False)
    app = create_app(settings, Registry(folder), Pool(settings)).app
    found = {
        Route(method, path, info.body)
        for path, info in routes_of(app).items()
        for method in info.methods
        if method != "HEAD"
    }
    return sorted(found)


def add_models(models: Path, folder: Path) -> None:
    """Put the models that the routes are asked about into a store; `folder` is for their files."""
    registry = Registry(models)
    registry.add_model_folder(SAME, DATA / "taught-qwen3", transfer="copy")
    registry.add_model_folder(OTHER, DATA / "taught-llama", transfer="copy")
    registry.add_model_folder(RANKER, make_encoder(folder / "ranker", "xlm-roberta", ranks=True), transfer="copy")
    registry.add_model_folder(SPEECH, make_whisper(folder / "speech"), transfer="copy")
