"""Models with the same weights share their records on disk: the list names all of them, and so does clearing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from omlx_registry import Registry, Texts

from omlx.settings import Settings
from tests.server.local import LocalServer
from tests.support.lessons import STORY
from tests.support.tiny import DATA


@pytest.fixture
def http(tmp_path: Path) -> Iterator[httpx.Client]:
    registry = Registry(tmp_path / "models", [])
    registry.add_model_folder("taught", DATA / "taught-llama", transfer="copy")
    registry.add_model_folder("pirate", DATA / "taught-llama", texts=Texts(system="Arr."), transfer="copy")
    registry.add_model_folder("other", DATA / "taught-qwen3", transfer="copy")
    settings = Settings(models=str(tmp_path / "models"), paged_ssd_cache_dir=str(tmp_path / "kv"), spare_runner=False,
                        cache_block_size=16, cache_write_through=True)  # fmt: skip
    with LocalServer(registry, settings) as server, server.client() as client:
        yield client


def ask(http: httpx.Client, model: str) -> None:
    body = {"model": model, "prompt": STORY, "stream": False, "options": {"num_predict": 2}, "keep_alive": 0}
    http.post("/api/generate", json=body).raise_for_status()
    while http.get("/api/omlx/status").json()["models"]:  # until it has written its records and gone
        pass


def folder(http: httpx.Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = http.get("/api/omlx/cache/folder").json()["models"]
    return found


def clear(http: httpx.Client, model: str) -> httpx.Response:
    return http.post("/api/omlx/cache/clear", json={"model": model})


def test_records_of_the_same_weights_belong_to_all_their_names(http: httpx.Client) -> None:
    ask(http, "taught")
    ask(http, "other")
    both = ["pirate:latest", "taught:latest"]
    assert sorted((use["names"] for use in folder(http)), key=len) == [["other:latest"], both]

    assert clear(http, "nobody").status_code == 404
    assert clear(http, "nobody").json() == {"error": "model 'nobody' not found"}
    assert len(folder(http)) == 2
    gone = clear(http, "Pirate").json()
    assert (gone["names"], gone["records"] > 0) == (both, True)
    assert [use["names"] for use in folder(http)] == [["other:latest"]]
    assert clear(http, "taught").json() == {"records": 0, "names": both}

    http.request("DELETE", "/api/delete", json={"model": "other"}).raise_for_status()
    assert [(use["name"], use["names"]) for use in folder(http)] == [("other:latest", [])]
    assert clear(http, "other").json()["records"] > 0, "a model that was removed can still have records"
    assert folder(http) == []
    assert clear(http, "other").status_code == 404
