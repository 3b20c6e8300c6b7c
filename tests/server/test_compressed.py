"""Compressed request bodies are read on every JSON route, and never grow past the limit of plain ones."""

from __future__ import annotations

import base64
import gzip
import json
import random
import threading
import tracemalloc
from typing import Any

import httpx
import pytest
import zstandard

from tests.server.local import LocalServer

CHAT = {"model": "plain", "messages": [{"role": "user", "content": "say Hi"}], "stream": False}
COMPRESS = {"gzip": gzip.compress, "zstd": zstandard.ZstdCompressor().compress}


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/api/chat", {}),
        ("/v1/chat/completions", {}),
        ("/v1/messages", {"max_tokens": 5}),
        ("/v1/responses", {"input": "say Hi"}),
    ],
)
def test_a_compressed_body_is_read(http: httpx.Client, path: str, fields: dict[str, Any], encoding: str) -> None:
    content = COMPRESS[encoding](json.dumps({**CHAT, **fields}).encode())
    response = http.post(path, content=content, headers={"content-encoding": encoding})
    assert response.status_code == 200, response.text
    assert "Hi" in response.text


def test_a_stream_of_several_frames_is_one_body(http: httpx.Client) -> None:
    text = json.dumps(CHAT).encode()
    for encoding, compress in COMPRESS.items():
        content = compress(text[:20]) + compress(text[20:])
        assert http.post("/api/chat", content=content, headers={"content-encoding": encoding}).status_code == 200


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_long_parts_are_one_body_too(http: httpx.Client, encoding: str) -> None:
    """Parts that are read in several steps, since they become much or are long themselves."""
    text, noise = json.dumps(CHAT).encode(), base64.b64encode(random.Random(1).randbytes(300_000))
    noisy = json.dumps({**CHAT, "unknown": noise.decode()}).encode()
    for parts in (
        (b" " * 3_000_000, text),
        (b" " * 3_000_000, b" " * 3_000_000, noisy),
        (noisy[:200_000], noisy[200_000:]),
    ):
        content = b"".join(COMPRESS[encoding](part) for part in parts)
        answer = http.post("/api/chat", content=content, headers={"content-encoding": encoding})
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("encoding", "part"),
    [
        ("gzip", gzip.compress(b"", mtime=0)),
        ("zstd", zstandard.ZstdCompressor().compress(b"")),
        ("zstd", b"\x5f\x2a\x4d\x18\0\0\0\0"),
    ],
)
def test_parts_without_end_are_refused(http: httpx.Client, encoding: str, part: bytes) -> None:
    answer = http.post("/api/chat", content=part * 1_000_000, headers={"content-encoding": encoding})
    assert (answer.status_code, "more than 10,000 parts" in answer.text) == (400, True)


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_bomb_is_refused_by_the_limit(http: httpx.Client, encoding: str) -> None:
    content = COMPRESS[encoding](b" " * 60_000_000)
    assert len(content) < 200_000
    response = http.post("/v1/messages", content=content, headers={"content-encoding": encoding})
    assert response.status_code == 413
    assert "max_body" in response.json()["error"]["message"]


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_bombs_take_no_memory(scripted: LocalServer, encoding: str) -> None:
    """They are counted before anything of them is kept, however many come at once."""
    content = COMPRESS[encoding](bytes(60_000_000))
    statuses: list[int] = []

    def send() -> None:
        with scripted.client() as client:
            answer = client.post("/api/chat", content=content, headers={"content-encoding": encoding}, timeout=120)
            statuses.append(answer.status_code)

    senders = [threading.Thread(target=send) for _ in range(8)]
    tracemalloc.start()
    try:
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()
    assert statuses == [413] * 8


@pytest.mark.parametrize(
    ("encoding", "content", "status"),
    [
        ("gzip", b"{}", 400),
        ("zstd", b"{}", 400),
        ("br", b"{}", 415),
        ("gzip", gzip.compress(b"{}" * 50, mtime=0)[:-12], 400),
        ("gzip", gzip.compress(b"{}", mtime=0) + b"{}", 400),
        ("gzip", gzip.compress(b"", mtime=0) * 20_000, 400),
    ],
)
def test_bytes_that_are_not_what_they_say_are_refused(
    http: httpx.Client, encoding: str, content: bytes, status: int
) -> None:
    response = http.post("/v1/chat/completions", content=content, headers={"content-encoding": encoding})
    assert response.status_code == status
    message = response.json()["error"]["message"]
    assert encoding in message
    assert "rror" not in message  # the libraries' own words, such as "Error -3 while decompressing data"


def test_identity_is_no_compression(http: httpx.Client) -> None:
    assert http.post("/api/chat", json=CHAT, headers={"content-encoding": "identity"}).status_code == 200


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
@pytest.mark.parametrize("size", [20_000, 1 << 20, (1 << 20) + 1, 16_000_001, 20_000_000])
def test_what_was_compressed_is_read_whole_up_to_the_limit(http: httpx.Client, encoding: str, size: int) -> None:
    text = json.dumps(CHAT).encode()
    compress = COMPRESS[encoding]
    padded = b" " * (size - len(text)) + text
    headers = {"content-encoding": encoding}
    assert http.post("/api/chat", content=compress(padded), headers=headers).status_code == 200
    if size == 20_000_000:
        assert http.post("/api/chat", content=compress(b" " + padded), headers=headers).status_code == 413


@pytest.mark.parametrize(
    ("path", "kind"), [("/v1/chat/completions", "invalid_request_error"), ("/v1/messages", "request_too_large")]
)
def test_a_client_is_told_that_its_body_is_the_mistake(http: httpx.Client, path: str, kind: str) -> None:
    """Agents try again what they take for the server's fault."""
    bomb = http.post(path, content=gzip.compress(bytes(30_000_000)), headers={"content-encoding": "gzip"})
    assert (bomb.status_code, bomb.json()["error"]["type"]) == (413, kind)
    unknown = http.post(path, content=b"{}", headers={"content-encoding": "br"})
    assert (unknown.status_code, unknown.json()["error"]["type"]) == (415, "invalid_request_error")
    wrong = http.put(path)
    assert (wrong.status_code, wrong.json()["error"]["type"]) == (405, "invalid_request_error")
    elsewhere = http.post(path, json={**CHAT, "model": "gpt-oss:120b-cloud", "max_tokens": 1})
    named = "permission_error" if path == "/v1/messages" else "invalid_request_error"
    assert (elsewhere.status_code, elsewhere.json()["error"]["type"]) == (403, named)
