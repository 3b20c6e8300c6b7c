"""Clients that misbehave: each may spoil its own request, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import threading
import time
from collections import Counter

import httpx
import pytest

from tests.faults.house import HELLO, MODEL, House, ask

pytestmark = pytest.mark.timeout(600)
LONG = b'{"model":"%s","prompt":"Tell me a story.","options":{"num_predict":400,"temperature":1}}' % MODEL.encode()


def connect(house: House) -> socket.socket:
    return socket.create_connection(("127.0.0.1", house.port), timeout=60)


def head(path: str, length: int, *more: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {length}", *more]
    return "\r\n".join([*lines, "", ""]).encode()


def reply_of(connection: socket.socket) -> bytes:
    """What the server says until it closes or falls silent."""
    found = b""
    try:
        while part := connection.recv(65536):
            found += part
            if b"\r\n0\r\n" in found or b'"error"' in found:
                break
    except (TimeoutError, ConnectionError):
        pass
    return found


def test_a_client_that_sends_half_a_body_and_leaves(house: House) -> None:
    """Nothing is done for it; the next one is served."""
    for _ in range(20):
        with connect(house) as connection:
            connection.sendall(head("/api/chat", 1000) + b'{"model":')
    house.answers()


def test_a_client_that_sends_half_a_body_and_waits(house: House) -> None:
    """It waits for itself: others are answered meanwhile."""
    waiting = [connect(house) for _ in range(20)]
    for connection in waiting:
        connection.sendall(head("/api/chat", 1000) + b'{"model":')
    house.answers()
    for connection in waiting:
        connection.close()


def test_ten_thousand_headers(house: House) -> None:
    """Within a megabyte they are read, and mean nothing."""
    with connect(house) as connection:
        many = (f"X-Header-{at}: {at}" for at in range(10_000))
        connection.sendall(head("/api/version", 0, "Connection: close", *many))
        assert reply_of(connection).startswith(b"HTTP/1.1 405 ")


def test_a_header_without_end(house: House) -> None:
    """431 after a megabyte and the connection is closed: no memory is taken by what goes on."""
    before = house.memory()
    with connect(house) as connection:
        connection.sendall(b"GET /api/version HTTP/1.1\r\nHost: localhost\r\nX-Header: ")
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                connection.sendall(b"x" * 1_000_000)
        with contextlib.suppress(ConnectionError):
            assert reply_of(connection)[:12] in (b"", b"HTTP/1.1 431")
    assert house.memory() - before < 20 << 20


@pytest.mark.parametrize(("kind", "most"), [("bombs", 60_000_000), ("bodies", 560_000_000)])
def test_eight_large_bodies_at_once(house: House, kind: str, most: int) -> None:
    """Together they take the room there is for bodies (512 MB), bombs next to nothing; a small one is answered."""
    if kind == "bombs":
        content, encoding, expected = gzip.compress(bytes(300_000_000), 1), "gzip", 413
    else:
        content, encoding, expected = b'{"model":"nope","prompt":"%s"}' % (b"x" * 60_000_000), "identity", 404
    statuses: list[int] = []

    def send() -> None:
        headers = {"content-encoding": encoding}
        url = f"{house.url}/api/generate"
        statuses.append(httpx.post(url, content=content, headers=headers, timeout=120, trust_env=False).status_code)

    senders = [threading.Thread(target=send) for _ in range(8)]
    before = peak = house.memory()
    for sender in senders:
        sender.start()
    while any(sender.is_alive() for sender in senders):
        assert house.post("/api/generate", {"model": "nope"}).status_code == 404
        peak = max(peak, house.memory())
    assert statuses == [expected] * 8
    assert peak - before < most


def test_requests_on_one_connection_are_counted_each(house: House) -> None:
    """A connection that stays open may bring any number of heads and bodies."""
    with httpx.Client(base_url=house.url, timeout=60, trust_env=False) as client:
        for _ in range(30):
            body = {"model": "nope", "prompt": "x" * 100_000}
            assert client.post("/api/generate", json=body, headers={"x-more": "y" * 30_000}).status_code == 404


def test_clients_that_leave_in_mid_stream(house: House) -> None:
    """Their places are free at the next step."""
    for _ in range(10):
        with connect(house) as connection:
            connection.sendall(head("/api/generate", len(LONG)) + LONG)
            assert connection.recv(100)


def test_a_client_that_never_reads(house: House) -> None:
    """Its answer waits for it in bounded space; others are served; its place is free once it leaves."""
    silent = [connect(house) for _ in range(4)]
    for connection in silent:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(head("/api/generate", len(LONG)) + LONG)
    house.answers()
    for connection in silent:
        connection.close()


@pytest.mark.slow
def test_a_client_that_reads_slowly(house: House) -> None:
    """It gets its whole answer, and others do not wait for it."""
    with connect(house) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(head("/api/generate", len(LONG)) + LONG)
        house.answers()
        found = b""
        while b'"done":true' not in found and (part := connection.recv(512)):
            found += part
            time.sleep(0.002)
        assert b'"done":true' in found


def test_a_length_that_is_not_one(house: House) -> None:
    """400, or a closed connection."""
    for length in ("-5", "abc", "99999999999999999999999"):
        with connect(house) as connection:
            connection.sendall(f"POST /api/chat HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{{}}".encode())
            connection.settimeout(5)
            assert not (answer := reply_of(connection)) or answer.split()[1][:1] == b"4"


def test_a_gigabyte_is_announced(house: House) -> None:
    """413 or 400 before it is sent: nobody keeps room for it."""
    with connect(house) as connection:
        connection.sendall(head("/api/chat", 1 << 30) + b'{"model":"x"')
        assert b"HTTP/1.1 4" in reply_of(connection)


@pytest.mark.slow
def test_a_gigabyte_is_sent_in_chunks(house: House) -> None:
    """Refused when the limit is reached; the server's memory grows by no more than the limit and its copy."""
    before = house.memory()
    with connect(house) as connection:
        connection.sendall(b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
        most = before
        try:
            for _ in range(1024):
                connection.sendall(chunk)
                most = max(most, house.memory())
        except (ConnectionError, TimeoutError):
            pass
        assert b"HTTP/1.1 4" in reply_of(connection) or most - before < 300 << 20
    assert most - before < 300 << 20


@pytest.mark.slow
def test_five_hundred_connections(house: House) -> None:
    """Each is answered rightly or told that the server is busy (503); none is left hanging."""

    async def all_at_once() -> Counter[int]:
        body = {"model": MODEL, "messages": HELLO.messages, "stream": False, "options": {"temperature": 0}}
        limits = httpx.Limits(max_connections=500)
        async with httpx.AsyncClient(timeout=170, trust_env=False, limits=limits) as client:
            answers = await asyncio.gather(*(client.post(f"{house.url}/api/chat", json=body) for _ in range(500)))
        for answer in answers:
            assert answer.status_code == 503 or answer.json()["message"]["content"] == HELLO.content
        return Counter(answer.status_code for answer in answers)

    assert asyncio.run(all_at_once())[200] >= 400
    assert ask(house.url).status_code == 200
