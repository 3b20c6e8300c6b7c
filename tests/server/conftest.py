"""One scripted server for all tests of the routes that do not change its models."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from omlx.settings import Settings
from tests.server.local import SCRIPTED, LocalServer, stocked


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """Nothing of it may be broken for good: a test that changes the store takes `own_server`."""
    root = tmp_path_factory.mktemp("store")
    settings = Settings(models=str(root), spare_runner=False, max_body=20_000_000, max_loaded_models=8)
    with LocalServer(stocked(root), settings, SCRIPTED) as server:
        yield server


@pytest.fixture(scope="session")
def http(scripted: LocalServer) -> Iterator[httpx.Client]:
    with scripted.client() as client:
        yield client


@pytest.fixture
def own_server(tmp_path: pytest.TempPathFactory) -> Iterator[LocalServer]:
    from pathlib import Path

    root = Path(str(tmp_path)) / "store"
    with LocalServer(stocked(root), Settings(models=str(root), spare_runner=False), SCRIPTED) as server:
        yield server
