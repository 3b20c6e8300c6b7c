"""A large body is one client's affair: the others are answered while it is read."""

from __future__ import annotations

import gzip
import json
import threading

import httpx
import pytest

from tests.server.local import LocalServer


def test_others_are_answered_while_a_large_body_is_read(scripted: LocalServer) -> None:
    """An answer comes while the turn to read large JSON is taken, which ends together with the reading."""
    body = b'{"model":"nope","context":[' + b"0," * 1_900_000 + b"0]}"
    answers: list[httpx.Response] = []
    reading = scripted.room.parsing

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


@pytest.mark.parametrize("value", [b"0", b"{}", b'"",""'])
@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions"])
def test_a_body_of_more_values_than_any_request_has_is_refused(http: httpx.Client, path: str, value: bytes) -> None:
    """Each takes a hundred times its bytes once it is read, and compressed it costs the sender nothing."""
    body = b'{"model":"plain","options":{"stop":[' + b",".join([value] * 2_000_001) + b"]}}"
    for content, encoding in ((body, "identity"), (gzip.compress(body, 1), "gzip")):
        response = http.post(path, content=content, headers={"content-encoding": encoding}, timeout=120)
        assert response.status_code == 413
        assert "holds more than 2,000,000 values" in response.text


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
