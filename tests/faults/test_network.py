"""A pull whose network fails, through the server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.faults.house import House
from tests.support.hub import FakeHub
from tests.support.tiny import tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
NAME = "hf.co/org/tiny"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[FakeHub]:
    folder = tmp_path / "hub" / "org" / "tiny"
    folder.parent.mkdir(parents=True)
    folder.symlink_to(tiny_model("llama"))
    with FakeHub(tmp_path / "hub") as running:
        yield running


def pull(house: House) -> list[dict[str, str]]:
    return [json.loads(line) for line in house.post("/api/pull", {"model": NAME}).text.splitlines()]


def listed(house: House) -> list[str]:
    return [model["name"] for model in httpx.get(f"{house.url}/api/tags", trust_env=False).json()["models"]]


def test_the_network_is_lost_in_mid_pull(hub: FakeHub, tmp_path: Path) -> None:
    """Short gaps are bridged; a long one ends the pull with a sentence and nothing listed; the next pull goes on."""
    with House(tmp_path / "house", env={"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf")}) as house:
        house.furnish()
        hub.faults.drop_after = [50_000] + [0] * 30
        assert "error" in pull(house)[-1]
        assert f"{NAME}:latest" not in listed(house)
        hub.faults.drop_after = [100_000, 100_000]
        assert pull(house)[-1] == {"status": "success"}
        assert f"{NAME}:latest" in listed(house)
        house.examine()


def test_a_client_leaves_in_mid_pull_and_the_server_is_killed(hub: FakeHub, tmp_path: Path) -> None:
    """Nothing is listed; the pull is finished after the restart."""
    house = House(tmp_path / "house", env={"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf")})
    house.start()
    house.furnish()
    hub.faults.bytes_per_s = 100_000
    body = {"model": NAME}
    with httpx.stream("POST", f"{house.url}/api/pull", json=body, timeout=60, trust_env=False) as answer:
        for line in answer.iter_lines():
            if json.loads(line).get("completed"):
                break
        house.kill()
    house.start()
    assert f"{NAME}:latest" not in listed(house)
    hub.faults.bytes_per_s = 0
    assert pull(house)[-1] == {"status": "success"}
    house.answers()
    house.files_before = house.open_files()
    house.examine()
    house.stop()
