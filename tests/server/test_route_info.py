"""Every route says whose protocol it speaks and who answers it where replicas stand behind the server."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from litestar import Litestar
from omlx_registry import Registry

from omlx.pool import Pool
from omlx.server.app import create_app
from omlx.server.route_info import RouteInfo, RouteTable, routes_of
from omlx.settings import Settings
from tests.server.local import LocalServer


@pytest.fixture(scope="module")
def routes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RouteInfo]:
    folder = tmp_path_factory.mktemp("models")
    settings = Settings(models=str(folder), spare_runner=False)
    app = create_app(settings, Registry(folder), Pool(settings)).app
    assert isinstance(app, Litestar)
    return routes_of(app)


def test_a_protocol_is_what_its_paths_say(routes: dict[str, RouteInfo]) -> None:
    for path, info in routes.items():
        if path.startswith("/api/omlx/"):
            assert info.protocol == "omlx", path
        elif path.startswith("/api/"):
            assert info.protocol == "ollama", path
        elif path.startswith("/v1/messages"):
            assert info.protocol == "anthropic", path
        elif path.startswith(("/v1/", "/v2/", "/rerank")):
            assert info.protocol == "openai", path
        else:
            assert info.protocol == "omlx", path


def test_what_a_model_answers_is_passed_to_a_replica(routes: dict[str, RouteInfo]) -> None:
    """Every route of the other protocols, and of Ollama's what a model answers."""
    passed = {path for path, info in routes.items() if info.balancing == "passed"}
    others = {path for path, info in routes.items() if info.protocol in {"openai", "anthropic"}}
    assert passed == others | {"/api/generate", "/api/chat", "/api/embed", "/api/embeddings", "/api/show"}
    assert {"/rerank", "/v1/rerank", "/v2/rerank"} <= passed


def test_what_changes_models_is_done_on_each_replica(routes: dict[str, RouteInfo]) -> None:
    assert {path for path, info in routes.items() if info.balancing == "each"} == {
        *("/api/pull", "/api/push", "/api/create", "/api/copy", "/api/delete", "/api/blobs/{digest:str}"),
        *("/api/omlx/pin", "/api/omlx/import"),
    }
    assert {path: info.balancing for path, info in routes.items() if info.balancing in {"tags", "running"}} == {
        "/api/tags": "tags",
        "/api/ps": "running",
    }
    open_paths = {path for path, info in routes.items() if not info.needs_key}
    assert open_paths == {"/", "/health", "/api/version", "/dashboard/{name:str}"}


@pytest.mark.parametrize(
    ("path", "protocol"),
    [
        ("/v1/models/mlx-community/Qwen3", "openai"), ("/v1/nowhere", "openai"), ("/v1/messages/nowhere", "anthropic"),
        ("/api/nowhere", "ollama"), ("/api/omlx/nowhere", "omlx"), ("/nowhere", "omlx"), ("/v2/rerank", "openai"),
    ],
)  # fmt: skip
def test_a_path_without_a_route_has_the_protocol_of_those_like_it(
    routes: dict[str, RouteInfo], path: str, protocol: str
) -> None:
    assert RouteTable(routes).protocol(path) == protocol


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_a_refused_key_is_told_in_the_words_of_the_route(path: str, tmp_path: Path) -> None:
    settings = Settings(models=str(tmp_path), spare_runner=False, api_key=["sesame"])
    with LocalServer(Registry(tmp_path), settings) as server:
        answer = httpx.post(server.url + path, json={}, trust_env=False)
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"
