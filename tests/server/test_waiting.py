"""A request that waits for its model while another client changes or deletes what the name stands for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from omlx.pool import PoolError
from omlx.settings import Settings
from tests.server.local import SCRIPTED, LocalServer, eventually, stocked

ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/api/generate", {"prompt": "request", "stream": True}),
    ("/api/generate", {"prompt": "request", "stream": False}),
    ("/api/chat", {"messages": [{"role": "user", "content": "request"}], "stream": False}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "request"}]}),
    ("/v1/completions", {"prompt": "request"}),
    ("/v1/responses", {"input": "request", "stream": True}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "request"}], "max_tokens": 9}),
]
EMBEDDING: list[tuple[str, dict[str, Any]]] = [
    ("/api/embed", {"input": "A"}),
    ("/api/embeddings", {"prompt": "A"}),
    ("/v1/embeddings", {"input": "A"}),
    ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "A"}]}),
    ("/api/omlx/cache/explain", {"prompt": "A"}),
]


@pytest.fixture
def narrow_server(tmp_path: Path) -> Iterator[LocalServer]:
    """It has room for one model."""
    settings = Settings(models=str(tmp_path), spare_runner=False, max_loaded_models=1)
    with LocalServer(stocked(tmp_path), settings, SCRIPTED) as server:
        yield server


def while_waiting(
    server: LocalServer, path: str, body: dict[str, Any], change: Callable[[httpx.Client], object]
) -> Any:
    """The reply to a request for the model `mine` that waits for room while `change` happens."""

    async def loading() -> bool:
        return any(model.state == "loading" for model in server.pool.loaded())

    with server.client() as client, ThreadPoolExecutor(1) as pool:
        client.post("/api/create", json={"model": "mine", "from": "plain", "system": "the first", "stream": False})
        busy = client.stream("POST", "/api/generate", json={"model": "qwen3", "prompt": "begin"})
        with busy as stream:
            lines = stream.iter_lines()  # it closes the stream when it goes
            next(lines)
            reply = pool.submit(lambda: httpx.post(server.url + path, json={"model": "mine", **body}, trust_env=False))
            assert eventually(lambda: server.ask(loading))
            threading.Event().wait(0.2)
            change(client)
        return reply.result(120)


@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_who_waits_for_a_model_that_is_made_anew_gets_the_new_one(
    narrow_server: LocalServer, path: str, body: dict[str, Any]
) -> None:
    again = {"model": "mine", "from": "plain", "system": "the second", "stream": False}
    reply = while_waiting(narrow_server, path, body, lambda client: client.post("/api/create", json=again))
    assert (reply.status_code, "the second" in reply.text, "the first" in reply.text) == (200, True, False), reply.text


@pytest.mark.parametrize(("path", "body"), [*ROUTES, *EMBEDDING])
def test_who_waits_for_a_model_that_is_deleted_hears_that_it_is_not_there(
    narrow_server: LocalServer, path: str, body: dict[str, Any]
) -> None:
    def delete(client: httpx.Client) -> None:
        client.request("DELETE", "/api/delete", json={"model": "mine"}).raise_for_status()

    reply = while_waiting(narrow_server, path, body, delete)
    assert reply.status_code == 404
    assert "not found" in reply.text


def test_who_waits_for_a_model_that_another_is_copied_over_gets_the_copy(narrow_server: LocalServer) -> None:
    copied = {"source": "embedder", "destination": "mine"}
    change = lambda client: client.post("/api/copy", json=copied)  # noqa: E731
    embedded = while_waiting(narrow_server, "/api/embed", {"input": "A"}, change)
    assert len(embedded.json()["embeddings"]) == 1
    refused = while_waiting(narrow_server, "/api/generate", {"prompt": "say Hi"}, change)
    assert refused.status_code == 400
    assert "does not support generate" in refused.text


def test_a_load_that_fails_does_not_name_the_folder_of_the_server(own_server: LocalServer) -> None:
    """The files of a model go away without its being deleted."""
    spec = own_server.registry.resolve("plain")

    async def load() -> None:
        (Path(spec.path) / "config.json").unlink()
        await own_server.pool.acquire(spec)

    with pytest.raises(PoolError) as failed:
        own_server.ask(load)
    assert spec.path not in failed.value.message
