"""Compressed request bodies are read on every JSON route, and never grow past the limit of plain ones."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from typing import Any

import httpx
import pytest
import zstandard

from omlx.dialect.refusal import Refusal
from omlx.server.inflate import inflate

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
def test_a_bomb_is_refused_by_the_limit(http: httpx.Client, encoding: str) -> None:
    content = COMPRESS[encoding](b" " * 60_000_000)
    assert len(content) < 200_000
    response = http.post("/v1/messages", content=content, headers={"content-encoding": encoding})
    assert response.status_code == 413
    assert "max_body" in response.json()["error"]["message"]


@pytest.mark.anyio
@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
async def test_a_bomb_takes_no_more_memory_than_the_limit(encoding: str) -> None:
    content = COMPRESS[encoding](bytes(60_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(Refusal):
            await inflate(content, encoding, 1_000_000)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("encoding", "content", "status"),
    [
        ("gzip", b"{}", 400),
        ("zstd", b"{}", 400),
        ("br", b"{}", 415),
        ("gzip", gzip.compress(b"{}" * 50, mtime=0)[:-12], 400),
    ],
)
def test_bytes_that_are_not_what_they_say_are_refused(
    http: httpx.Client, encoding: str, content: bytes, status: int
) -> None:
    response = http.post("/v1/chat/completions", content=content, headers={"content-encoding": encoding})
    assert response.status_code == status
    assert encoding in response.json()["error"]["message"]


def test_identity_is_no_compression(http: httpx.Client) -> None:
    assert http.post("/api/chat", json=CHAT, headers={"content-encoding": "identity"}).status_code == 200


@pytest.mark.anyio
@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
async def test_the_limit_is_exact(encoding: str) -> None:
    content = COMPRESS[encoding](b"x" * 1000)
    assert len(await inflate(content, encoding, 1000)) == 1000
    assert len(await inflate(content, encoding, 0)) == 1000
    with pytest.raises(Refusal):
        await inflate(content, encoding, 999)
