"""Large bodies share one memory: who wants much waits for a turn, everybody else is answered meanwhile."""

from __future__ import annotations

import gzip
import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from omlx.server import body
from omlx.settings import Settings
from tests.server.local import SCRIPTED, LocalServer, eventually, stocked

LARGE = 120_000_000
"""Bytes. The memory by default is 512 MB, and such a body takes twice its own: a second one has to wait."""


def chat(size: int) -> bytes:
    """A body of `size` bytes for a model that is not there: read whole, then 404."""
    text = b'{"model":"nope","messages":[{"role":"user","content":"%s"}]}'
    return text % (b"x" * (size - len(text) + 2))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    root = tmp_path_factory.mktemp("store")
    with LocalServer(stocked(root), Settings(models=str(root), spare_runner=False), SCRIPTED) as found:
        yield found


@contextmanager
def begun(
    server: LocalServer, headers: str = f"Content-Length: {LARGE}", size: int = 2_000_000
) -> Iterator[socket.socket]:
    """A client that has sent the first `size` bytes of a large body, and waits."""
    port = int(server.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as connection:
        head = f"POST /api/chat HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n\r\n"
        connection.sendall(head.encode())
        connection.sendall(b" " * size if "Length" in headers else b"%x\r\n%b\r\n" % (size, b" " * size))
        yield connection


class Sending:
    """A request that is sent beside the test."""

    def __init__(self, server: LocalServer, content: bytes, encoding: str = "identity") -> None:
        self.answer: httpx.Response | None = None

        def send() -> None:
            with server.client() as client:
                headers = {"content-encoding": encoding}
                self.answer = client.post("/api/chat", content=content, headers=headers, timeout=120)

        self._thread = threading.Thread(target=send)
        self._thread.start()

    @property
    def waits(self) -> bool:
        return self._thread.is_alive()

    def status(self) -> int:
        self._thread.join(150)
        assert self.answer is not None
        return self.answer.status_code


def test_a_large_body_waits_for_its_turn_and_others_do_not(server: LocalServer) -> None:
    with begun(server):
        waiting = [Sending(server, chat(LARGE)), Sending(server, gzip.compress(chat(LARGE), 1), "gzip")]
        with server.client() as client:
            for content in (chat(1000), chat(5_000_000), chat(15_000_000)):
                assert client.post("/api/chat", content=content).status_code == 404
                headers = {"content-encoding": "gzip"}
                assert client.post("/api/chat", content=gzip.compress(content, 1), headers=headers).status_code == 404
            bomb = gzip.compress(bytes(300_000_000))  # a third of a megabyte
            refused = client.post("/api/chat", content=bomb, headers={"content-encoding": "gzip"})
            assert refused.status_code == 413
        assert all(sending.waits for sending in waiting)
    assert [sending.status() for sending in waiting] == [404, 404]


def test_a_body_that_does_not_say_its_size_takes_room_as_it_comes(server: LocalServer) -> None:
    """A few megabytes keep nobody waiting; more than a modest part counts as the largest body."""
    memory, chunked = server.memory, "Transfer-Encoding: chunked"
    with begun(server, chunked), begun(server, chunked, 10_000_000), server.client() as client:
        assert eventually(lambda: memory.size - memory.free == 2 * memory.modest)
        assert client.post("/api/chat", content=chat(LARGE), timeout=120).status_code == 404
    with begun(server, chunked, 20_000_000):
        assert eventually(lambda: memory.size - memory.free == 2 * 128_000_000)
        waiting = Sending(server, chat(LARGE))
        with server.client() as client:
            assert client.post("/api/chat", content=chat(1000)).status_code == 404
        assert waiting.waits
    assert waiting.status() == 404


def test_bodies_that_grow_at_once_do_not_wait_for_each_other_for_ever(server: LocalServer) -> None:
    """Each holds a modest part and wants more than all of them leave; some get it in turn, the others are told."""
    memory = server.memory

    def pieces() -> Iterator[bytes]:
        content = chat(40_000_000)
        for start in range(0, len(content), 1_000_000):
            yield content[start : start + 1_000_000]

    def post() -> int:
        with server.client() as client:
            return client.post("/api/chat", content=pieces(), timeout=120).status_code

    with ThreadPoolExecutor(14) as threads:
        found = Counter(threads.map(lambda _: post(), range(14)))
    assert set(found) <= {404, 503} and found[404] >= 2, found
    assert eventually(lambda: memory.free == memory.size and not memory.waiting)


def test_who_leaves_while_waiting_gives_the_place_back(server: LocalServer) -> None:
    """Both kinds: a body that has arrived and would become large, and one that is still to come."""
    with begun(server) as first:
        packed = gzip.compress(chat(LARGE), 1)
        head = f"Content-Encoding: gzip\r\nContent-Length: {len(packed)}"
        memory = server.memory
        with begun(server, head, 0) as second, begun(server):
            second.sendall(packed)
            assert eventually(lambda: memory.waiting == 2)
        assert eventually(lambda: memory.waiting <= 1)
        last = Sending(server, chat(LARGE))
        assert eventually(lambda: memory.waiting >= 1)
        first.close()
        assert last.status() == 404
    assert eventually(lambda: memory.waiting == 0 and memory.free == memory.size)


def test_room_is_held_as_long_as_what_was_read_is(server: LocalServer) -> None:
    """A request that runs still holds its pictures, or its text; when it has ended, all the memory is there again."""
    text = json.dumps({"model": "plain", "prompt": "begin " + "x" * 30_000_000})
    memory = server.memory
    with server.client() as client, client.stream("POST", "/api/generate", content=text, timeout=60) as answer:
        lines = answer.iter_lines()  # once nobody has them, the connection is closed
        assert next(lines)
        assert memory.size - memory.free == pytest.approx(30_000_000, rel=0.01)
    assert eventually(lambda: memory.free == memory.size)


def test_a_slow_sender_is_sent_away_when_others_wait(server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "_GRACE_S", -LARGE / 100_000)
    monkeypatch.setattr(body, "_LOOK_S", 0.05)
    with begun(server) as slow:
        slow.settimeout(0.3)
        with pytest.raises(TimeoutError):
            slow.recv(100)  # nobody else wants the memory: it may take its time
        slow.settimeout(30)
        waiting = Sending(server, chat(LARGE))
        assert slow.recv(100).startswith(b"HTTP/1.1 408 ")
    assert waiting.status() in {404, 408}
