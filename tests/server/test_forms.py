"""Multipart bodies from anybody: each is parsed or refused with a sentence, within limits."""

from __future__ import annotations

import gzip
import socket
import time
from collections.abc import Iterator

import httpx
import pytest
from omlx_registry import Registry

from omlx.protocols.http_error import HTTPError
from omlx.server.forms import parse_form
from omlx.settings import Settings
from tests.server.local import LocalServer, eventually

BOUNDARY = "----omlx"
END = f"--{BOUNDARY}--\r\n".encode()
TYPE = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
OPEN = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="a"'.encode()
FILE = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'.encode()
LARGE = 32_000_000


def part(name: str, content: bytes, filename: str = "") -> bytes:
    file = f'; filename="{filename}"' if filename else ""
    disposition = f'Content-Disposition: form-data; name="{name}"{file}'
    return f"--{BOUNDARY}\r\n{disposition}\r\n\r\n".encode() + content + b"\r\n"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        END[:-3],
        part("a", b"1"),
        part("a", b"1") * 101 + END,
        part("a", b"1" * 100_001) + END,
        OPEN + b"\r\n" + b"a: b\r\n" * 1000 + b"\r\n1\r\n" + END,
        OPEN + b"\r\na: " + b"b" * 100_000 + b"\r\n\r\n1\r\n" + END,
        OPEN + b"; a=b" * 10_000 + b"\r\n\r\n1\r\n" + END,
        OPEN + b"\r\nContent-Length: 99999999999\r\n\r\n1\r\n" + END,
        OPEN + b"\r\nContent-Length: -1\r\n\r\n1\r\n" + END,
        OPEN[:-2] + b"\xff\xfe" + b'"\r\n\r\n1\r\n' + END,
        f"--{BOUNDARY}\r\nContent-Type: text/plain\r\n\r\n1\r\n".encode() + END,
        f"--{BOUNDARY}\r\n".encode() * 100_000,
        b"\r\n" * 100_000,
    ],
    ids=[
        "empty", "cut", "no end", "parts", "field", "headers", "header", "parameters", "length", "negative length",
        "no UTF-8", "no disposition", "boundaries", "line ends",
    ],
)  # fmt: skip
def test_what_is_no_form_is_refused_with_a_sentence(body: bytes) -> None:
    with pytest.raises(HTTPError) as refused:
        parse_form(body, BOUNDARY)
    assert refused.value.status == 400
    assert refused.value.message.startswith(("failed to parse multipart form: ", "the form field "))
    assert "Error" not in refused.value.message and "(" not in refused.value.message.replace("(parser closed)", "")


def test_names_are_only_names() -> None:
    """A file's name is kept as it came and used for nothing; a part within a part is content."""
    inner = b"--other\r\nContent-Disposition: form-data; name=b\r\n\r\n2\r\n--other--"
    names = ("../../etc/passwd", "a\0b", "C:\\a", "-" * 2000)
    body = b"".join(part("file", b"1", name) for name in names) + part("a", inner) + END
    form = parse_form(body, BOUNDARY)
    assert [file.content for file in form.files["file"]] == [b"1"] * len(names)
    assert form.text("a") == inner.decode() and form.text("b") == ""


@pytest.mark.parametrize("unit", [b"-", b"\r", b"\r\n", b"\r\n--", f"\r\n--{BOUNDARY[:-1]}".encode()])
def test_a_file_of_what_looks_like_a_boundary_takes_no_longer_than_any(unit: bytes) -> None:
    def cpu_s(content: bytes) -> float:
        begun = time.process_time()
        assert len(parse_form(FILE + content + b"\r\n" + END, BOUNDARY).files["file"][0].content) == len(content)
        return time.process_time() - begun

    usual = cpu_s(bytes(LARGE))
    assert cpu_s(unit * (LARGE // len(unit))) < 10 * usual + 0.5


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    root = tmp_path_factory.mktemp("forms")
    settings = Settings(models=str(root / "models"), spare_runner=False, max_body=2_000_000)
    with LocalServer(Registry(root / "models", []), settings) as server:
        yield server


@pytest.fixture
def http(server: LocalServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client:
        yield client


GOOD = part("model", b"nope") + part("file", b"1", "a") + END


@pytest.mark.parametrize(
    ("headers", "body", "status", "said"),
    [
        (TYPE, GOOD, 404, "not found"),
        ({"content-type": "Multipart/FORM-DATA; Boundary=" + BOUNDARY}, GOOD, 404, "not found"),
        (TYPE | {"content-encoding": "gzip"}, gzip.compress(GOOD), 404, "not found"),
        (TYPE | {"content-encoding": "gzip"}, gzip.compress(bytes(50_000_000)), 413, "when decompressed"),
        (TYPE | {"content-encoding": "gzip"}, GOOD, 400, "is not gzip"),
        (TYPE | {"content-encoding": "br"}, GOOD, 415, "is not supported"),
        (TYPE, GOOD + bytes(2_000_000), 413, "larger than"),
        (TYPE, END, 400, "model is required"),
        (TYPE, part("model", b"nope") + END, 400, "file is required"),
        (TYPE, part("model", b"\x1b[31m/../x\r\nA: b") + part("file", b"1", "a") + END, 400, "invalid model name"),
        ({"content-type": "multipart/form-data"}, GOOD, 400, "not multipart/form-data"),
        ({"content-type": 'multipart/form-data; boundary=""'}, GOOD, 400, "not multipart/form-data"),
        ({"content-type": 'multipart/form-data; boundary="'}, GOOD, 400, "not multipart/form-data"),
        ({"content-type": f"multipart/form-data; boundary={'é' * 100}"}, GOOD, 400, "failed to parse"),
        ({"content-type": "multipart/mixed; boundary=" + BOUNDARY}, GOOD, 400, "not multipart/form-data"),
        ({"content-type": "application/json"}, b"{}", 400, "not multipart/form-data"),
        ({}, GOOD, 400, "not multipart/form-data"),
    ],
)
def test_what_a_client_is_told(
    http: httpx.Client, headers: dict[str, str], body: bytes, status: int, said: str
) -> None:
    encoded = {name: value.encode("latin-1") for name, value in headers.items()}
    answer = http.post("/v1/audio/transcriptions", content=body, headers=encoded)
    assert (answer.status_code, said in answer.json()["error"]["message"]) == (status, True), answer.text
    assert "\x1b" not in answer.text


@pytest.mark.parametrize("length", ["1", "999999"])
def test_a_length_that_is_not_true_harms_nobody(http: httpx.Client, server: LocalServer, length: str) -> None:
    """Too short: what is left is no request. Too long: the client leaves before the body is there."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        head = f"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n"
        connection.sendall(head.encode() + f"Content-Type: {TYPE['content-type']}\r\n\r\n".encode() + GOOD)
        if length == "1":
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 400")
    assert eventually(lambda: http.post("/v1/audio/transcriptions", content=GOOD, headers=TYPE).status_code == 404)


def test_a_part_that_never_ends_is_refused_at_the_limit(server: LocalServer) -> None:
    """More of it changes nothing: `test_connection.py` has how long it may go on."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        lines = ["POST /v1/audio/transcriptions HTTP/1.1", f"Host: {host}", "Transfer-Encoding: chunked"]
        connection.sendall("\r\n".join([*lines, f"Content-Type: {TYPE['content-type']}", "", ""]).encode())
        for content in (FILE, *[bytes(1 << 16)] * 40):
            connection.sendall(b"%x\r\n" % len(content) + content + b"\r\n")
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 413 ")


def test_the_memory_of_a_form_is_given_back(http: httpx.Client, server: LocalServer) -> None:
    memory = server.memory
    body = part("model", b"nope") + part("file", bytes(1_500_000), "a") + END
    assert http.post("/v1/audio/transcriptions", content=body, headers=TYPE).status_code == 404
    assert eventually(lambda: memory.free == memory.size)
