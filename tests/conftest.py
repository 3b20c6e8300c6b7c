"""Fixtures for the whole suite."""

from __future__ import annotations

import os
from collections.abc import Iterator

import httpx
import hypothesis
import pytest

# Time is no property of ours: a machine with other work to do is slow at making examples.
hypothesis.settings.register_profile("suite", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("suite")
# Nor is it for an answer: what httpx waits where a test does not say. Only a hang takes so long.
for _part in ("connect", "read", "write", "pool"):
    setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, _part, 120.0)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True, scope="session")
def own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or writes the developer's own models, cache, config or server, nor goes through a proxy.

    The many processes that tests start compile our modules once, not each for itself.
    """
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.startswith(("OMLX_", "OLLAMA_")) or name.lower().endswith("_proxy"):
                patch.delenv(name)
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        patch.setenv("HOME", str(home))
        for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
            patch.setenv(name, str(home / name.lower()))
        yield
