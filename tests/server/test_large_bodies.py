"""A large body is one client's affair: the others are answered while it is read."""

from __future__ import annotations

import threading

import httpx

from tests.server.local import LocalServer


def test_others_are_answered_while_a_large_body_is_read(scripted: LocalServer) -> None:
    body = b'{"model":"nope","context":[' + b"0," * 4_000_000 + b"0]}"
    answers: list[httpx.Response] = []

    def send() -> None:
        with scripted.client() as client:
            answers.append(client.post("/api/generate", content=body, timeout=120))

    sender = threading.Thread(target=send)
    answered = 0
    with scripted.client() as client:
        client.get("/api/version")
        sender.start()
        while sender.is_alive():
            client.get("/api/version", timeout=120)
            answered += 1
    sender.join()
    assert answers[0].status_code == 404
    assert answered > 20
