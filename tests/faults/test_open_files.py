"""A server that may open few files, and clients that hold as many as they can."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.house import HELLO, MODEL, House, ask

pytestmark = pytest.mark.timeout(600)
FILES = 256
UNFINISHED = {
    "silent": b"",
    "half a head": b"POST /api/chat HTTP/1.1\r\nHost: local",
    "half a body": b'POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{"model":',
    "no next request": b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[House]:
    """Its hard limit is 256 files: mlx_lm asks for 4096."""
    with House(tmp_path, open_files=FILES) as house:
        yield house.furnish()


def test_a_hard_limit_of_open_files_stops_nothing(narrow: House) -> None:
    """Models are loaded, answered and quantized."""
    made = narrow.post("/api/create", {"model": "small", "from": MODEL, "quantize": "q8_0", "stream": False})
    assert made.json() == {"status": "success"}
    assert ask(narrow.url, model="small").status_code == 200
    narrow.examine()


def test_unfinished_connections_keep_nobody_out(narrow: House) -> None:
    """More of them than files: who comes with a request is answered, each kind of them with a model to load."""
    held = []
    for kind, sent in UNFINISHED.items():
        for _ in range(FILES + 50):
            connection = socket.create_connection(("127.0.0.1", narrow.port), timeout=60)
            held.append(connection)
            try:
                connection.sendall(sent)
            except ConnectionError:
                continue
        narrow.post("/api/generate", {"model": MODEL, "keep_alive": 0})
        answer = ask(narrow.url)
        assert answer.status_code == 200, kind
        assert answer.json()["message"]["content"] == HELLO.content
    assert "Too many open files" not in narrow.log_text()
    for connection in held:
        connection.close()
    narrow.examine()
