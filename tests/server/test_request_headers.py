"""Headers that say how urgent a request is and when it is too late, the same for every protocol."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.server.local import LocalServer, eventually

MESSAGES = [{"role": "user", "content": "request"}]
ASKS: dict[str, dict[str, Any]] = {
    "/api/generate": {"model": "plain", "prompt": "request", "stream": False},
    "/api/chat": {"model": "plain", "messages": MESSAGES, "stream": False},
    "/v1/chat/completions": {"model": "plain", "messages": MESSAGES},
    "/v1/responses": {"model": "plain", "input": "request"},
    "/v1/messages": {"model": "plain", "messages": MESSAGES, "max_tokens": 9},
}


def internal(answer: Any) -> dict[str, Any]:
    """The internal request that the scripted runner wrote as its reply, wherever the protocol puts text."""
    text = answer.get("response") or answer.get("message", {}).get("content")
    if text is None and "output" in answer:
        text = answer["output"][-1]["content"][0]["text"]
    if text is None:
        text = answer["choices"][0]["message"]["content"] if "choices" in answer else answer["content"][0]["text"]
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.mark.parametrize("path", ASKS)
def test_the_class_of_a_request_reaches_the_runner(http: httpx.Client, path: str) -> None:
    for given, wanted in (("", "interactive"), ("batch", "batch"), ("Background", "background")):
        reply = http.post(path, json=ASKS[path], headers={"X-OMLX-Priority": given} if given else {})
        assert reply.status_code == 200, reply.text
        assert internal(reply.json()).get("priority", "interactive") == wanted


@pytest.mark.parametrize("path", ASKS)
def test_the_class_may_stand_in_the_body_and_the_header_goes_first(http: httpx.Client, path: str) -> None:
    for given, header, wanted in (
        ("background", "", "background"),
        ("Batch", "", "batch"),
        ("batch", "background", "background"),
        ("", "", "interactive"),
        (None, "", "interactive"),
        (3, "", "interactive"),
    ):
        headers = {"X-OMLX-Priority": header} if header else {}
        reply = http.post(path, json=ASKS[path] | {"priority": given}, headers=headers)
        assert reply.status_code == 200, reply.text
        assert internal(reply.json()).get("priority", "interactive") == wanted
    reply = http.post(path, json=ASKS[path] | {"priority": "urgent"})
    assert reply.status_code == 400
    assert "priority must be one of interactive, batch, background" in reply.text


def test_what_cannot_be_meant_is_refused_in_the_words_of_the_protocol(http: httpx.Client) -> None:
    text = "X-OMLX-Priority must be one of interactive, batch, background"
    reply = http.post("/api/chat", json=ASKS["/api/chat"], headers={"X-OMLX-Priority": "urgent"})
    assert (reply.status_code, reply.json()) == (400, {"error": text})
    reply = http.post("/v1/messages", json=ASKS["/v1/messages"], headers={"X-OMLX-Priority": "urgent"})
    assert (reply.status_code, reply.json()["error"]["message"]) == (400, text)
    for given in ("0", "-1", "soon", "nan", "inf"):
        reply = http.post("/v1/chat/completions", json=ASKS["/v1/chat/completions"], headers={"X-OMLX-Deadline": given})
        assert reply.status_code == 400
        assert reply.json()["error"]["message"] == "X-OMLX-Deadline must be a number of seconds above 0"


def test_a_request_that_takes_too_long_ends_and_frees_its_place(http: httpx.Client, scripted: LocalServer) -> None:
    late = {"X-OMLX-Deadline": "0.2"}
    reply = http.post("/api/generate", json={"model": "plain", "prompt": "hang", "stream": False}, headers=late)
    assert (reply.status_code, reply.json()) == (503, {"error": "the request took longer than its deadline"})
    reply = http.post("/api/generate", json={"model": "plain", "prompt": "begin"}, headers=late)
    lines = [json.loads(line) for line in reply.text.splitlines()]
    assert lines[0]["response"] == "begun"
    assert lines[-1] == {"error": "the request took longer than its deadline"}
    assert eventually(lambda: scripted.running() == 0)
    reply = http.post("/api/generate", json={"model": "plain", "prompt": "say Hi", "stream": False},
                      headers={"X-OMLX-Deadline": "30"})  # fmt: skip
    assert reply.json()["response"] == "Hi"
