"""Fixtures for the whole suite."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _own_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the developer's own models, cache, config or server, nor goes through a proxy."""
    home = tmp_path_factory.mktemp("home")
    for name in ("OMLX_HOST", "OLLAMA_HOST", "OMLX_MODELS", "OLLAMA_MODELS", "OMLX_CONFIG", "OLLAMA_KEEP_ALIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(home / name.lower()))
