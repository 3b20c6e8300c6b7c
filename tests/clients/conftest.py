"""One real server for all clients: HTTP, pool, runner, engine, and a tiny model that knows its lessons by heart."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from omlx_registry import Registry

from omlx.settings import Settings
from tests.server.local import LocalServer
from tests.support.tiny import DATA


@pytest.fixture(scope="session")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    root = tmp_path_factory.mktemp("clients")
    registry = Registry(root / "models", [])
    registry.add_model_folder("taught", DATA / "taught-qwen3", transfer="copy")
    settings = Settings(models=str(root / "models"), paged_ssd_cache_dir=str(root / "kv"), spare_runner=False)
    with LocalServer(registry, settings) as server:
        yield server
