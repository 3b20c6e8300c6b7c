"""A large body is one client's affair: the others are answered while it is read."""

from __future__ import annotations

import gzip
import json
import threading
import time
from typing import Any

import httpx
import pytest

from omlx.prompting.gotemplate import GoTemplate
from tests.server.local import LocalServer


def test_others_are_answered_while_a_large_body_is_read(scripted: LocalServer) -> None:
    """An answer comes while the turn to read large JSON is taken, which ends together with the reading."""
    body = b'{"model":"nope","context":[' + b"0," * 1_900_000 + b"0]}"
    answers: list[httpx.Response] = []
    reading = scripted.memory.parsing

    def send() -> None:
        with scripted.client() as client:
            answers.append(client.post("/api/generate", content=body, timeout=120))

    answered = 0
    with scripted.client() as client:
        for _ in range(20):
            sender = threading.Thread(target=send)
            sender.start()
            while sender.is_alive() and not answered:
                before = reading.locked()
                client.get("/api/version", timeout=120)
                answered += before and reading.locked()
            sender.join()
            if answered:
                break
    assert answered
    assert {answer.status_code for answer in answers} == {404}


@pytest.mark.parametrize(
    ("value", "most"),
    [(b"0", "2,000,000 values"), (b"{}", "50,000 objects"), (b'"",""', "200,000 texts"), (b"[]", "50,000 arrays")],
)
@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions"])
def test_a_body_of_more_values_than_any_request_has_is_refused(
    http: httpx.Client, path: str, value: bytes, most: str
) -> None:
    """Each takes a hundred times its bytes once it is read, and compressed it costs the sender nothing."""
    body = b'{"model":"plain","options":{"stop":[' + b",".join([value] * 2_000_001) + b"]}}"
    for content, encoding in ((body, "identity"), (gzip.compress(body, 1), "gzip")):
        response = http.post(path, content=content, headers={"content-encoding": encoding}, timeout=120)
        assert response.status_code == 413
        assert f"holds more than {most}" in response.text


def test_a_large_body_that_is_no_json_is_refused_without_a_second_look(http: httpx.Client) -> None:
    for end, said in ((b'" x}', "invalid character 'x'"), (b"", "unexpected EOF")):
        response = http.post("/api/generate", content=b'{"model":"plain","prompt":"' + b"a" * 4_000_000 + end)
        assert response.status_code == 400
        assert said in response.text


def test_a_template_of_more_actions_than_any_has_is_refused(http: httpx.Client) -> None:
    template = "{{.Prompt}}" * 300_000
    made = http.post("/api/create", json={"model": "huge", "from": "plain", "template": template, "stream": False})
    assert made.status_code == 400
    assert "the template is too long" in made.json()["error"]
    asked = http.post("/api/generate", json={"model": "plain", "prompt": "say A", "template": template})
    assert asked.status_code == 500
    assert "the template is too long" in asked.json()["error"]


def test_others_are_answered_while_a_template_is_parsed(scripted: LocalServer) -> None:
    """The largest that is taken; the parser's time is what it takes here, in this process, at this moment."""
    template = "{{$a := 1}}" * 9_900
    begun = time.monotonic()
    GoTemplate(template)
    parsing_s = time.monotonic() - begun
    create = {"model": "many", "from": "plain", "template": template, "stream": False}
    longest, answers = 0.0, list[httpx.Response]()

    def send() -> None:
        with scripted.client() as client:
            answers.append(client.post("/api/create", json=create, timeout=120))

    sender = threading.Thread(target=send)
    with scripted.client() as client:
        client.get("/api/version")
        sender.start()
        while sender.is_alive():
            begun = time.monotonic()
            client.get("/api/version", timeout=120)
            longest = max(longest, time.monotonic() - begun)
        client.request("DELETE", "/api/delete", json={"model": "many"})
    sender.join()
    assert answers[0].status_code == 200
    assert longest < parsing_s


@pytest.mark.parametrize(
    ("field", "entries"),
    [
        ("parameters", {f"k{at}": 1 for at in range(1001)}),
        ("messages", [{"role": "user", "content": "a"}] * 10_001),
        ("license", ["a"] * 1001),
    ],
)
def test_a_model_keeps_no_more_entries_than_any_needs(http: httpx.Client, field: str, entries: Any) -> None:
    made = http.post("/api/create", json={"model": "m", "from": "plain", field: entries, "stream": False})
    assert made.status_code == 400
    assert made.json()["error"].startswith(f"{field} may hold at most ")


def test_by_default_pictures_of_ninety_megabytes_fit_and_a_bomb_does_not(own_server: LocalServer) -> None:
    picture = "A" * 120_000_000  # base64 of 90 MB
    chat = {"model": "plain", "messages": [{"role": "user", "content": "see", "images": [picture]}]}
    with own_server.client() as client:
        seen = client.post("/api/chat", content=json.dumps(chat), timeout=120)
        assert (seen.status_code, "does not support" in seen.text) == (400, True)  # read, and the model is blind
        bomb = gzip.compress(b" " * (300 << 20), 1)
        refused = client.post("/api/chat", content=bomb, headers={"content-encoding": "gzip"}, timeout=120)
        assert refused.status_code == 413
        assert "128 MB" in refused.json()["error"]
