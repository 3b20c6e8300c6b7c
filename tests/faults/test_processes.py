"""Processes that are killed or stop: a runner, a worker, the server."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import httpx
import psutil
import pytest

from tests.faults.house import MODEL, House, ask

pytestmark = pytest.mark.timeout(600)


def wait_for(condition: object, within: float = 120.0) -> None:
    begun = time.monotonic()
    while not condition():  # type: ignore[operator]
        assert time.monotonic() - begun < within, "it did not happen in time"
        time.sleep(0.02)


def test_a_runner_is_killed_in_mid_stream(house: House) -> None:
    """The stream ends with an error line; the next request loads the model again and is answered."""
    endless = {"type": "grammar", "syntax": "regex", "definition": "[a-z ]{50000}"}
    body = {"model": MODEL, "prompt": "x", "raw": True, "format": endless, "options": {"num_predict": 40_000}}
    runner = house.runner()
    with httpx.stream("POST", f"{house.url}/api/generate", json=body, timeout=60, trust_env=False) as answer:
        lines = answer.iter_lines()
        next(lines)
        runner.kill()
        assert '"error"' in [*lines][-1]
    house.answers()


@pytest.mark.slow
def test_a_runner_is_stopped(house: House) -> None:
    """It is found to make no progress and ended; what had not streamed is asked again of a new one, and answered."""
    runner = house.runner()
    runner.send_signal(signal.SIGSTOP)
    house.answers()
    assert house.runner().pid != runner.pid


@pytest.mark.slow
def test_a_runner_is_killed_again_and_again(house: House) -> None:
    """Each time the model comes back; no process is left behind."""
    for _ in range(5):
        house.runner().kill()
        house.answers()


@pytest.mark.slow
def test_the_server_is_killed(tmp_path: Path) -> None:
    """Its runners end with it; started again it lists and answers as before, from an intact store and cache."""
    house = House(tmp_path)
    house.start()
    house.furnish()
    runner = house.runner()
    house.kill()
    wait_for(lambda: not runner.is_running() or runner.status() == psutil.STATUS_ZOMBIE)
    house.start()
    house.answers()
    house.files_before = house.open_files()
    house.examine()
    house.stop()


@pytest.mark.slow
def test_the_server_is_stopped_and_goes_on(house: House) -> None:
    """Requests of that time are answered once it goes on; its runner is not taken for a stalled one."""
    assert house.process is not None
    pid = house.runner().pid
    answers: list[httpx.Response] = []
    house.process.send_signal(signal.SIGSTOP)
    asking = threading.Thread(target=lambda: answers.append(ask(house.url)))
    asking.start()
    time.sleep(8)
    house.process.send_signal(signal.SIGCONT)
    asking.join()
    assert answers[0].status_code == 200
    assert house.runner().pid == pid


@pytest.mark.slow
def test_a_worker_is_killed_while_it_makes_a_model(house: House) -> None:
    """The create ends with an error, nothing is listed, and the same create works afterwards."""
    assert house.process is not None
    own = psutil.Process(house.process.pid)
    before = {child.pid for child in own.children(recursive=True)}
    ended: list[str] = []

    def create(name: str) -> None:
        # The taught model is in full precision: quantizing it is a worker's work.
        ended.append(house.post("/api/create", {"model": name, "from": MODEL, "quantize": "q8_0"}).text)

    making = threading.Thread(target=create, args=("halfway",))
    making.start()
    killed = False
    while making.is_alive() and not killed:
        for child in own.children(recursive=True):
            if child.pid not in before:
                child.kill()
                killed = True
                break
    making.join()
    names = [model["name"] for model in httpx.get(f"{house.url}/api/tags", trust_env=False).json()["models"]]
    if killed and '"error"' in ended[0]:
        assert "halfway:latest" not in names
    create("whole")
    assert '"success"' in ended[-1], ended[-1]
