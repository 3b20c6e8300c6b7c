"""Connections from outside: what they may leave unfinished and for how long, and what older and newer clients send."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from omlx.server.connection_limits import Connections, Times
from omlx.settings import Settings
from tests.server.local import SCRIPTED, LocalServer, eventually, stocked

_QUICK = Times(first_byte=0.8, head=1.0, body=1.2, answer=1.6)
BODY = json.dumps({"model": "plain", "prompt": "say Hi", "stream": False}).encode()
STREAM = json.dumps({"model": "plain", "prompt": "say Hi"}).encode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A server that waits for nobody, with room for twelve connections."""
    root = tmp_path_factory.mktemp("store")
    settings = Settings(models=str(root), spare_runner=False)
    with LocalServer(stocked(root), settings, SCRIPTED, Connections(12, _QUICK)) as running:
        yield running


def connect(server: LocalServer) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=120)


def request(body: bytes, *headers: str, version: str = "1.1") -> bytes:
    lines = [f"POST /api/generate HTTP/{version}", "Host: localhost", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def rest_of(connection: socket.socket) -> bytes:
    """What comes until the server closes."""
    found = b""
    try:
        while part := connection.recv(65536):
            found += part
    except ConnectionResetError:
        pass
    return found


def answer_of(connection: socket.socket) -> bytes:
    """What comes until the answer's end is seen."""
    found = b""
    while b'"done":true' not in found and b'"error"' not in found and (part := connection.recv(65536)):
        found += part
    return found


# ------------------------------------------------------------ time
@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (b"", b""),
        (b"POST /api/generate HTTP/1.1\r\nHost: localh", b"HTTP/1.1 408 Request Timeout\r\n"),
        (request(BODY)[:-10], b"HTTP/1.1 408 Request Timeout\r\n"),
        (
            b"POST /api/generate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{",
            b"HTTP/1.1 408 ",
        ),
    ],
    ids=["silent", "half a head", "half a body", "half a chunk"],
)
def test_a_request_that_is_never_finished_ends(server: LocalServer, sent: bytes, told: bytes) -> None:
    with connect(server) as connection:
        connection.sendall(sent)
        assert rest_of(connection).startswith(told)


def test_a_head_that_comes_byte_by_byte_ends_all_the_same(server: LocalServer) -> None:
    with connect(server) as connection:
        connection.settimeout(0.1)
        for byte in b"GET /api/version HTTP/1.1\r\nX: " + b"y" * 200:
            try:
                connection.sendall(bytes([byte]))
                if connection.recv(100).startswith(b"HTTP/1.1 408 "):
                    return
            except TimeoutError:
                continue
        raise AssertionError("200 bytes were waited for")


def test_a_second_request_that_is_never_finished_ends(server: LocalServer) -> None:
    with connect(server) as connection:
        connection.sendall(request(BODY))
        assert b'"done":true' in answer_of(connection)
        connection.sendall(request(BODY)[:-10])
        assert rest_of(connection).startswith(b"HTTP/1.1 408 ")


def test_a_body_that_comes_slowly_but_steadily_is_read(server: LocalServer) -> None:
    body = json.dumps({"model": "plain", "prompt": "say Hi", "stream": False, "padding": "x" * 60_000}).encode()
    with connect(server) as connection:
        whole = request(body)
        begun = time.monotonic()
        for at in range(0, len(whole), 6000):
            connection.sendall(whole[at : at + 6000])
            time.sleep(0.25)
        assert time.monotonic() - begun > 2 * _QUICK.body
        assert b'"response":"Hi"' in answer_of(connection)


def test_a_body_that_goes_on_for_ever_after_its_refusal_ends(server: LocalServer) -> None:
    """However fast it comes: nobody reads it."""
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    with connect(server) as connection:
        connection.sendall(b"POST /api/show HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        begun = time.monotonic()
        with pytest.raises(ConnectionError):
            while time.monotonic() - begun < 60:
                connection.sendall(chunk)


def test_waiting_for_an_answer_is_no_fault(server: LocalServer) -> None:
    with connect(server) as connection:
        connection.sendall(request(json.dumps({"model": "plain", "prompt": "hang"}).encode()))
        connection.settimeout(2 * _QUICK.body)
        with pytest.raises(TimeoutError):
            connection.recv(1)
    assert eventually(lambda: server.running() == 0)


# ------------------------------------------------------------ places
def test_who_was_silent_longest_makes_way(server: LocalServer) -> None:
    """Half of the places are for connections without a request; those who have one are answered all the same."""
    silent = [connect(server) for _ in range(40)]
    with connect(server) as connection:
        connection.sendall(request(BODY))
        assert b'"done":true' in answer_of(connection)
    for one in silent:
        one.close()


def test_a_place_is_kept_for_who_is_answered(server: LocalServer) -> None:
    """Where requests that are being answered have every place, one more is told to come back; then there is room."""

    async def users() -> int:
        return sum(model.users for model in server.pool.loaded())

    hanging = []
    for number in range(12):
        hanging.append(connect(server))
        hanging[-1].sendall(request(json.dumps({"model": "plain", "prompt": "hang"}).encode()))
        assert eventually(lambda number=number: server.ask(users) > number)
    with connect(server) as connection:
        connection.sendall(request(BODY))
        told = rest_of(connection)
    assert told.startswith(b"HTTP/1.1 503 Service Unavailable\r\n") and b"retry-after: 1\r\n" in told
    for one in hanging:
        one.close()
    assert eventually(lambda: server.running() == 0)
    with connect(server) as connection:
        connection.sendall(request(BODY))
        assert b'"done":true' in answer_of(connection)


def test_places_are_given_back(server: LocalServer) -> None:
    for _ in range(50):
        with connect(server) as connection:
            connection.sendall(request(BODY))
            assert b'"done":true' in answer_of(connection)


# ------------------------------------------------------------ half-closed clients
@pytest.mark.parametrize("body", [BODY, STREAM], ids=["whole", "stream"])
def test_a_client_of_http_1_0_that_sends_no_more_gets_its_answer(server: LocalServer, body: bytes) -> None:
    with connect(server) as connection:
        connection.sendall(request(body, version="1.0"))
        connection.shutdown(socket.SHUT_WR)
        reply = rest_of(connection)
    assert reply.startswith(b"HTTP/1.1 200 OK\r\n"), "no interim answer, which HTTP/1.0 does not know"
    assert reply.count(b'"done":true') == 1


@pytest.mark.parametrize("body", [BODY, STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize("count", [1, 3])
def test_a_client_that_sends_no_more_gets_its_answers(server: LocalServer, body: bytes, count: int) -> None:
    with connect(server) as connection:
        connection.sendall(request(body) * count)
        connection.shutdown(socket.SHUT_WR)
        assert rest_of(connection).count(b'"done":true') == count


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("path", ["/api/generate", "/v1/completions"])
def test_a_client_that_sends_no_more_within_a_stream_gets_all_of_it(
    server: LocalServer, tmp_path: Path, path: str, version: str
) -> None:
    go_on = tmp_path / "go on"
    body = json.dumps({"model": "plain", "prompt": f"until {go_on}", "stream": True}).encode()
    with connect(server) as connection:
        connection.sendall(request(body, version=version).replace(b"/api/generate", path.encode(), 1))
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        begun = answer.readline()
        assert b"begun" in begun
        connection.shutdown(socket.SHUT_WR)
        threading.Event().wait(0.5)  # the server asks meanwhile whether anybody listens
        go_on.touch()
        rest = answer.read()
    assert b" and ended" in rest and (b'"done":true' in rest or b"[DONE]" in rest)


def test_a_client_that_leaves_within_a_silent_stream_is_noticed(server: LocalServer) -> None:
    """Nothing more is written to it that could fail."""
    with connect(server) as connection:
        connection.sendall(request(json.dumps({"model": "plain", "prompt": "begin"}).encode()))
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert b"begun" in answer.readline()
        assert eventually(lambda: server.running() == 1)
        answer.close()
    assert eventually(lambda: server.running() == 0)


def test_a_client_that_sent_no_more_and_leaves_is_noticed(server: LocalServer) -> None:
    connection = connect(server)
    connection.sendall(request(json.dumps({"model": "plain", "prompt": "hang"}).encode()))
    connection.shutdown(socket.SHUT_WR)
    assert eventually(lambda: server.running() == 1)
    connection.close()
    assert eventually(lambda: server.running() == 0)


# ------------------------------------------------------------ older and newer clients
@pytest.mark.parametrize(
    "headers",
    [
        ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk"),
        ("Connection: upgrade", "Upgrade: websocket"),
        ("Upgrade: TLS/1.2", "Connection: keep-alive, Upgrade"),
        ("Upgrade: h2c",),
        ("Connection: Upgrade",),
    ],
    ids=["h2c", "websocket", "TLS", "without Connection", "without Upgrade"],
)  # fmt: skip
@pytest.mark.parametrize("pieces", [1, 7])
def test_an_offer_to_upgrade_is_ignored(server: LocalServer, headers: tuple[str, ...], pieces: int) -> None:
    """The request is answered in HTTP/1.1, its body included, and the connection goes on."""
    whole = request(BODY, *headers)
    step = -(-len(whole) // pieces)
    with connect(server) as connection:
        for _ in range(2):
            for at in range(0, len(whole), step):
                connection.sendall(whole[at : at + step])
            reply = answer_of(connection)
            assert reply.startswith(b"HTTP/1.1 200 OK\r\n") and b'"response":"Hi"' in reply


def test_an_offer_to_upgrade_in_chunks_and_pipelined(server: LocalServer) -> None:
    offer = "Connection: Upgrade\r\nUpgrade: h2c\r\n"
    chunked = f"POST /api/generate HTTP/1.1\r\nHost: localhost\r\n{offer}Transfer-Encoding: chunked\r\n\r\n".encode()
    chunked += b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
    with connect(server) as connection:
        connection.sendall(chunked + request(BODY, "Connection: close"))
        assert rest_of(connection).count(b'"response":"Hi"') == 2


def test_http_1_0_gets_no_chunks(server: LocalServer) -> None:
    """The body is what is left when the connection ends; each line of it is JSON."""
    with connect(server) as connection:
        connection.sendall(request(STREAM, version="1.0"))
        head, _, body = rest_of(connection).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower() and b"connection: close" in head.lower()
    lines = [json.loads(line) for line in body.splitlines()]
    assert "".join(line["response"] for line in lines) == "Hi" and lines[-1]["done"]


def test_http_1_0_keeps_a_known_length(server: LocalServer) -> None:
    with connect(server) as connection:
        connection.sendall(request(BODY, version="1.0"))
        head, _, body = rest_of(connection).partition(b"\r\n\r\n")
    assert f"content-length: {len(body)}".encode() in head.lower()
    assert json.loads(body)["response"] == "Hi"


def test_what_is_not_http_gets_400(server: LocalServer) -> None:
    with connect(server) as connection:
        connection.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n")
        assert rest_of(connection).startswith(b"HTTP/1.1 400 ")


TRAILED = b"POST /api/show HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n%b\r\n"


def test_headers_behind_a_body_are_not_taken_for_those_before_it(server: LocalServer) -> None:
    """They come after everything about the request was decided."""
    for trailer in (b"Host: evil\r\n", b"Content-Encoding: nonsense\r\nX-Priority: nonsense\r\n"):
        with connect(server) as client:
            client.sendall(TRAILED % trailer + b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = b""
            while b"omlx_version" not in answer and (part := client.recv(65536)):
                answer += part
        assert b"model is required" in answer and b"omlx_version" in answer


def test_headers_behind_a_body_have_an_end(server: LocalServer) -> None:
    with connect(server) as client:
        try:
            client.sendall(TRAILED % (b"X: y\r\n" * 10_000))
            answer = client.recv(65536)
        except ConnectionError:
            answer = b"400"
    assert b"400" in answer[:20]


def test_a_request_names_its_host(server: LocalServer) -> None:
    for version, status in ((b"1.1", b"400"), (b"1.0", b"200")):
        with connect(server) as client:
            client.sendall(b"GET /api/version HTTP/%b\r\n\r\n" % version)
            assert client.recv(65536).split()[1] == status
