"""A client that leaves stops its request at once, wherever it is, and no slot is ever lost."""

from __future__ import annotations

import json
import logging
import re
import socket
import threading

import httpx
import pytest

from omlx.settings import Settings
from tests.server.local import SCRIPTED, LocalServer, eventually, stocked


def send(server: LocalServer, prompt: str, *, stream: bool, behind: bytes = b"") -> socket.socket:
    """An open connection with the request on its way."""
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    connection.sendall(_request(prompt, stream=stream) + behind)
    return connection


def _request(prompt: str, *, stream: bool, padding: str = "") -> bytes:
    body = json.dumps({"model": "plain", "prompt": prompt, "stream": stream}).encode() + padding.encode()
    head = f"POST /api/generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def loaded(server: LocalServer) -> None:
    with server.client() as http:
        http.post("/api/generate", json={"model": "plain"}).raise_for_status()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("prompt", ["hang", "begin"])
def test_leaving_frees_the_slot_and_is_no_error(
    scripted: LocalServer, caplog: pytest.LogCaptureFixture, prompt: str, stream: bool
) -> None:
    caplog.set_level(logging.INFO)
    loaded(scripted)
    connection = send(scripted, prompt, stream=stream)
    assert eventually(lambda: scripted.running() == 1)
    connection.close()
    assert eventually(lambda: scripted.running() == 0)
    assert eventually(lambda: "the client left" in caplog.text)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_hundred_aborted_requests_leak_nothing(scripted: LocalServer) -> None:
    loaded(scripted)
    for round_ in range(10):
        connections = [send(scripted, ("hang", "begin")[n % 2], stream=n % 3 > 0) for n in range(10)]
        if round_ % 2:
            assert eventually(lambda: scripted.running() == 10)
        for connection in connections:
            connection.close()
    assert eventually(lambda: scripted.running() == 0)
    assert eventually(lambda: scripted.ask(lambda: _users(scripted)) == 0)
    with scripted.client() as http:
        reply = http.post("/api/generate", json={"model": "plain", "prompt": "say Hi", "stream": False})
        assert reply.json()["response"] == "Hi"


async def _users(server: LocalServer) -> int:
    return sum(model.users for model in server.pool.loaded())


def test_leaving_while_the_model_loads_gives_up_the_load(tmp_path: pytest.TempPathFactory) -> None:
    from pathlib import Path

    root = Path(str(tmp_path))
    sleeper = ("sleep", "30")  # a runner that never says hello
    with LocalServer(stocked(root), Settings(models=str(root), spare_runner=False), sleeper) as server:
        connection = send(server, "say Hi", stream=True)

        async def models() -> int:
            return len(server.pool.loaded())

        assert eventually(lambda: server.ask(models) == 1)
        connection.close()
        assert eventually(lambda: server.ask(models) == 0)


def test_a_stream_reaches_the_client_while_it_runs(scripted: LocalServer) -> None:
    loaded(scripted)
    body = {"model": "plain", "prompt": "begin"}
    with scripted.client() as http, http.stream("POST", "/api/generate", json=body) as response:
        assert json.loads(next(response.iter_lines()))["response"] == "begun"
    assert eventually(lambda: scripted.running() == 0)


def test_requests_beyond_the_queue_are_turned_away_and_the_rest_is_served(tmp_path: pytest.TempPathFactory) -> None:
    from pathlib import Path

    root = Path(str(tmp_path))
    settings = Settings(models=str(root), spare_runner=False, max_concurrent_requests=1, max_queue=2)
    with LocalServer(stocked(root), settings, SCRIPTED) as server:
        loaded(server)
        waiting = [send(server, "hang", stream=True) for _ in range(3)]

        async def queued() -> int:
            return server.pool.waiting

        assert eventually(lambda: server.ask(queued) == 2)
        with server.client() as http:
            reply = http.post("/api/generate", json={"model": "plain", "prompt": "say Hi"})
            assert reply.status_code == 503
            assert reply.json() == {"error": "server busy, please try again.  maximum pending requests exceeded"}
            assert int(reply.headers["retry-after"]) >= 1
            assert http.get("/ready").status_code == 503
            for connection in waiting:
                connection.close()
            assert eventually(lambda: server.ask(queued) == 0)
            assert http.get("/ready").status_code == 200
            assert http.post("/api/generate", json={"model": "plain", "prompt": "say Hi"}).status_code == 200


def test_many_streams_at_once_stay_apart(scripted: LocalServer) -> None:
    loaded(scripted)
    answers: dict[int, str] = {}

    def one(number: int) -> None:
        with httpx.Client(base_url=scripted.url, timeout=120, trust_env=False) as http:
            reply = http.post("/api/generate", json={"model": "plain", "prompt": f"say {number} {number}"})
            answers[number] = "".join(json.loads(part)["response"] for part in reply.text.splitlines())

    threads = [threading.Thread(target=one, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert answers == {number: f"{number}{number}" for number in range(20)}


NEXT = b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("prompt", ["hang", "begin"])
def test_leaving_is_noticed_with_another_request_behind_the_running_one(
    scripted: LocalServer, caplog: pytest.LogCaptureFixture, prompt: str, at_once: bool
) -> None:
    """Whether it came in the same piece or later; and nothing is written to a connection that is closed."""
    loaded(scripted)
    connection = send(scripted, prompt, stream=True, behind=NEXT if at_once else b"")
    assert eventually(lambda: scripted.running() == 1)
    if not at_once:
        connection.sendall(NEXT)
        threading.Event().wait(0.1)
    connection.close()
    assert eventually(lambda: scripted.running() == 0)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_requests_that_come_early_are_answered_in_turn(scripted: LocalServer) -> None:
    """A megabyte of them, bodies included, in whatever pieces the network makes of it."""
    loaded(scripted)
    words = [f"{number:04}" for number in range(40)]
    padding = " " * 30_000
    connection = send(scripted, "say begin", stream=False)
    sender = threading.Thread(
        target=lambda: [connection.sendall(_request(f"say {word}", stream=False, padding=padding)) for word in words]
    )
    sender.start()
    heard = b""
    connection.settimeout(120)
    while heard.count(b"HTTP/1.1 200") < len(words) + 1 or not heard.endswith(b"}"):
        heard += connection.recv(1 << 16)
    sender.join(120)
    said = [json.loads(part)["response"] for part in re.findall(rb"\r\n\r\n(\{.*?\})(?=HTTP|$)", heard)]
    assert said == ["begin", *words]
    connection.close()


def test_a_flood_of_early_requests_is_held_back(scripted: LocalServer) -> None:
    """It is not read into memory, and ends with the client."""
    loaded(scripted)
    connection = send(scripted, "many 100000", stream=True)
    connection.settimeout(1)
    with pytest.raises(TimeoutError):
        for _ in range(2_000):
            connection.sendall(NEXT * 1_000)
    connection.close()
    assert eventually(lambda: scripted.running() == 0)
