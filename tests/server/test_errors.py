"""Bad requests get Ollama's status and sentence, as JSON, and nothing else leaves the process."""

from __future__ import annotations

import json
import logging
from typing import Any

import httpx
import pytest

from omlx.runner.connection import CRASHED
from tests.server.local import LocalServer

USER = [{"role": "user", "content": "say Hi"}]
DEEP = b'{"model":"plain","messages":' + b"[" * 3000


def error(status: int, message: str) -> tuple[int, dict[str, str]]:
    return status, {"error": message}


def outcome(response: httpx.Response) -> tuple[int, Any]:
    assert response.headers["content-type"].startswith("application/json")
    return response.status_code, response.json()


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("chat", {}, 400, "model is required"),
        ("chat", {"model": "", "messages": USER}, 400, "model is required"),
        ("generate", {}, 404, "model '' not found"),
        ("embed", {}, 404, "model '' not found"),
        ("embeddings", {}, 400, "model is required"),
        ("show", {"model": "", "name": ""}, 400, "model is required"),
        ("push", {}, 400, "model is required"),
        ("pull", {}, 400, "invalid model name"),
        ("create", {}, 400, "invalid model name"),
        ("copy", {}, 400, 'source "" is invalid'),
        ("copy", {"source": "plain"}, 400, 'destination "" is invalid'),
        ("copy", {"source": "a b", "destination": "x"}, 400, 'source "a b" is invalid'),
        ("copy", {"source": "nope", "destination": "x"}, 404, 'model "nope" not found'),
        ("chat", {"model": "a b", "messages": USER}, 400, "invalid model name"),
        ("generate", {"model": "a//b"}, 400, "invalid model name"),
        ("show", {"model": "a@b"}, 400, "invalid model name"),
        ("pull", {"model": "a b"}, 400, "invalid model name"),
        ("chat", {"model": "nope", "messages": USER}, 404, "model 'nope' not found"),
        ("generate", {"model": "Nope:x", "prompt": "a"}, 404, "model 'Nope:x' not found"),
        ("generate", {"model": "nope", "keep_alive": 0}, 404, "model 'nope' not found"),
        ("embed", {"model": "nope", "input": "a"}, 404, 'model "nope" not found, try pulling it first'),
        ("embeddings", {"model": "nope", "prompt": "a"}, 404, 'model "nope" not found, try pulling it first'),
        ("show", {"model": "nope"}, 404, "model 'nope:latest' not found"),
        ("chat", {"model": "m:cloud", "messages": USER}, 403, "ollama cloud is disabled: remote model is unavailable"),
        ("generate", {"model": "m:120b-cloud"}, 403, "ollama cloud is disabled: remote model is unavailable"),
        ("show", {"model": "m:cloud"}, 403, "ollama cloud is disabled: remote model details are unavailable"),
        ("pull", {"model": "m:cloud"}, 403, "ollama cloud is disabled: remote model is unavailable"),
        ("chat", {"model": "m:cloud:local"}, 400, 'use either :local or :cloud, not both: "m:cloud:local"'),
        ("chat", {"model": "plain", "messages": USER, "top_logprobs": 21}, 400,
         "top_logprobs must be between 0 and 20"),
        ("generate", {"model": "nope", "top_logprobs": -1}, 400, "top_logprobs must be between 0 and 20"),
        ("chat", {"model": "plain", "messages": USER, "think": True}, 400, '"plain" does not support thinking'),
        ("generate", {"model": "plain", "prompt": "a", "think": "low"}, 400, '"plain" does not support thinking'),
        ("chat", {"model": "qwen3:plain", "messages": USER, "think": True}, 400,
         '"qwen3:plain" does not support thinking. Pull the model again to get the latest version with full thinking'
         " support"),
        ("chat", {"model": "plain", "messages": USER, "tools": [{}]}, 400,
         "registry.ollama.ai/library/plain:latest does not support tools"),
        ("generate", {"model": "plain", "prompt": "a", "suffix": "b"}, 400,
         "registry.ollama.ai/library/plain:latest does not support insert"),
        ("generate", {"model": "embedder"}, 400, '"embedder" does not support generate'),
        ("chat", {"model": "embedder", "messages": USER}, 400, '"embedder" does not support chat'),
        ("generate", {"model": "plain", "prompt": "a", "images": ["aGk="]}, 400,
         "this model does not support image input"),
        ("chat", {"model": "plain", "messages": [{"role": "user", "images": ["aGk="]}]}, 400,
         "this model does not support image input"),
        ("generate", {"model": "plain", "prompt": "a", "raw": True, "system": "s"}, 400,
         "raw mode does not support template, system, or context"),
        ("generate", {"model": "plain", "raw": True, "context": [1]}, 400,
         "raw mode does not support template, system, or context"),
        ("chat", {"model": "plain", "messages": USER, "options": {"num_predict": "4"}}, 500,
         'option "num_predict" must be of type integer'),
        ("generate", {"model": "plain", "options": {"stop": "x"}}, 500, 'option "stop" must be of type array'),
        ("embed", {"model": "embedder", "input": "a", "options": {"seed": "x"}}, 500,
         'option "seed" must be of type integer'),
        ("chat", {"model": "plain", "messages": USER, "format": "yaml"}, 500,
         'invalid format: "\\"yaml\\""; expected "json" or a valid JSON Schema object'),
        ("generate", {"model": "plain", "prompt": "a", "format": 5}, 500,
         'invalid format: "5"; expected "json" or a valid JSON Schema object'),
        ("generate", {"model": "plain", "prompt": "a", "template": "{{ if }}"}, 500,
         "template: :1: missing value for if"),
        ("create", {"model": "new", "from": "plain", "template": "{{ if }}"}, 400,
         "template error: template: :1: missing value for if"),
        ("embed", {"model": "embedder", "input": [1, 2]}, 400, "invalid input type"),
        ("embed", {"model": "embedder", "input": {"a": 1}}, 400, "invalid input type"),
        ("chat", {"model": "plain", "messages": USER, "keep_alive": "banana"}, 400, 'time: invalid duration "banana"'),
        ("me", {}, 401, "unauthorized"),
        ("signout", {}, 401, "you are not currently signed in"),
        ("experimental/web_search", {}, 403, "ollama cloud is disabled: web search is unavailable"),
        ("experimental/web_fetch", {}, 403, "ollama cloud is disabled: web fetch is unavailable"),
        ("blobs/sha256:12", {}, 400, "invalid digest format"),
    ],
)  # fmt: skip
def test_a_bad_request_gets_ollamas_answer(
    http: httpx.Client, path: str, body: dict[str, Any], status: int, message: str
) -> None:
    assert outcome(http.post(f"/api/{path}", json=body)) == error(status, message)


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"model": ""}, 400, "model is required"),
        ({"model": "a b"}, 400, 'name "a b" is invalid'),
        ({"name": "nope"}, 404, "model 'nope' not found"),
    ],
)
def test_a_bad_delete_gets_ollamas_answer(http: httpx.Client, body: dict[str, Any], status: int, message: str) -> None:
    assert outcome(http.request("DELETE", "/api/delete", json=body)) == error(status, message)


@pytest.mark.parametrize("path", ["chat", "generate", "embed", "embeddings", "show", "pull", "push", "create", "copy"])
@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "missing request body"),
        (b" \n", "missing request body"),
        (b"{", "unexpected EOF"),
        (b"<html>", "invalid character '<' looking for beginning of value"),
        (DEEP, "exceeded max depth"),
    ],
)
def test_a_malformed_body_is_refused_everywhere(http: httpx.Client, path: str, body: bytes, message: str) -> None:
    assert outcome(http.post(f"/api/{path}", content=body)) == error(400, message)


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", "multipart/form-data", None])
def test_the_content_type_does_not_matter(http: httpx.Client, kind: str | None) -> None:
    headers = {"content-type": kind} if kind else {}
    content = json.dumps({"model": "plain", "messages": USER, "stream": False})
    assert http.post("/api/chat", content=content, headers=headers).status_code == 200


def test_a_failure_before_the_first_token_is_the_status(http: httpx.Client) -> None:
    for stream in (True, False):
        for prompt, expected in (
            ("fail too_long the prompt is longer than the context length", error(400, "the prompt is longer than the"
             " context length")),
            ("fail internal an error was encountered", error(500, "an error was encountered")),
            ("fail busy wait", error(503, "wait")),
        ):  # fmt: skip
            body = {"model": "plain", "prompt": prompt, "stream": stream}
            assert outcome(http.post("/api/generate", json=body)) == expected


def test_a_failure_after_the_first_token_is_the_last_line(http: httpx.Client) -> None:
    response = http.post("/api/generate", json={"model": "plain", "prompt": "break internal it broke"})
    assert response.status_code == 200
    first, last = [json.loads(part) for part in response.text.splitlines()]
    assert first["response"] == "begun"
    assert last == {"error": "it broke"}
    body = {"model": "plain", "prompt": "break internal it broke", "stream": False}
    assert outcome(http.post("/api/generate", json=body)) == error(500, "it broke")


def test_a_dead_runner_ends_its_streams_with_an_error_and_is_loaded_again(http: httpx.Client) -> None:
    response = http.post("/api/generate", json={"model": "plain", "prompt": "crash"})
    lines = [json.loads(part) for part in response.text.splitlines()]
    assert lines[-1] == {"error": CRASHED}
    assert http.post("/api/generate", json={"model": "plain", "prompt": "say Hi"}).status_code == 200


def test_a_runner_that_dies_twice_before_the_first_token_is_a_500(http: httpx.Client) -> None:
    response = http.post("/api/generate", json={"model": "eyes", "prompt": "die"})
    status, body = outcome(response)
    assert status == 500
    assert CRASHED in body["error"]


def test_a_body_over_the_limit_is_refused_by_name(http: httpx.Client) -> None:
    def endless() -> Any:
        for _ in range(30):
            yield b" " * 1_000_000

    for content in (b" " * 20_000_001, endless()):
        status, body = outcome(http.post("/api/chat", content=content))
        assert status == 413
        assert "20 MB" in body["error"]
        assert "max_body" in body["error"]


def test_a_prompt_of_ten_megabytes_is_taken(http: httpx.Client) -> None:
    prompt = "fail too_long no " + "x" * 10_000_000
    status, body = outcome(http.post("/api/generate", json={"model": "plain", "prompt": prompt}))
    assert status == 400
    assert body["error"].startswith("no xxx")


def test_numbers_no_frame_can_carry_are_the_clients_mistake(http: httpx.Client) -> None:
    content = (
        b'{"model":"thinker","messages":[{"role":"user","content":"say a"}],"format":{"minimum":1' + b"0" * 30 + b"}}"
    )
    status, _ = outcome(http.post("/api/chat", content=content))
    assert status == 400


def test_an_unforeseen_error_names_only_its_request(
    scripted: LocalServer, http: httpx.Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> Any:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(scripted.registry, "list", broken)
    status, body = outcome(http.get("/api/tags"))
    assert status == 500
    assert body["error"].startswith("internal error: see the server's log for request r")
    assert "secret" not in body["error"]
    assert "secret" in caplog.text


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "text"),
    [
        ("GET", "/nowhere", {}, 404, "404 page not found"),
        ("POST", "/api/tags", {}, 405, "405 method not allowed"),
        ("HEAD", "/api/ps", {}, 405, ""),
        ("GET", "/api/tags", {"Origin": "http://evil.example"}, 403, ""),
        ("GET", "/api/tags", {"Host": "evil.example"}, 403, ""),
    ],
)
def test_the_router_speaks_plain_text(
    http: httpx.Client, method: str, path: str, headers: dict[str, str], status: int, text: str
) -> None:
    response = http.request(method, path, headers=headers)
    assert (response.status_code, response.text) == (status, text)
    assert response.headers.get("content-type", "text/plain") == "text/plain"


def test_redirects_keep_method_and_body(http: httpx.Client) -> None:
    response = http.post("/api/show/", json={"model": "plain"}, follow_redirects=True)
    assert response.json()["system"] == "Be kind."
    assert [hop.status_code for hop in response.history] == [307]


@pytest.mark.parametrize("method", ["GET", "DELETE"])
@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/v1/responses/%E2%82%AC/", "/v1/responses/%E2%82%AC"),
        ("/v1/responses/x%0d%0aA:b/?q=%0d%0a", "/v1/responses/x%0D%0AA:b?q=%0d%0a"),
        ("/v1/responses/a%3Fb%23%25/", "/v1/responses/a%3Fb%23%25"),
        ("/v1/responses/%ff/", "/v1/responses/%EF%BF%BD"),
    ],
)
def test_a_redirect_leads_to_the_path_as_it_was_written(
    http: httpx.Client, caplog: pytest.LogCaptureFixture, method: str, path: str, place: str
) -> None:
    """Percent signs, line ends and letters beyond Latin-1 stay escaped: nothing of a path ends a header."""
    response = http.request(method, path)
    assert (response.status_code, response.headers["location"]) == (301 if method == "GET" else 307, place)
    assert "a" not in response.headers
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
