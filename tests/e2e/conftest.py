"""One real server on the real SmolLM2-135M for the whole folder: imported once, through the API, as a user would."""

from __future__ import annotations

from collections.abc import Iterator

import ollama
import pytest

from tests.support.server import ServerProcess

MODEL = "smollm2"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, own_folders: None) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("e2e")) as running:
        for _ in ollama.Client(running.url).pull(MODEL, stream=True):
            pass
        yield running


@pytest.fixture(scope="session")
def client(server: ServerProcess) -> ollama.Client:
    return ollama.Client(server.url)
