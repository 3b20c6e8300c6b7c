"""Every native route answers the recorded requests exactly as recorded: status, headers, body, order of keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.server.goldenfile import FOLDER, golden_server, play, read

FILES = sorted(FOLDER.glob("*.txt"))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with golden_server(tmp_path_factory.mktemp("golden")) as client:
        yield client


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_answers_are_the_recorded_ones(client: httpx.Client, path: Path) -> None:
    exchanges = read(path)
    assert exchanges
    for exchange in exchanges:
        assert (exchange.title, play(client, exchange)) == (exchange.title, exchange.answer), path.name
