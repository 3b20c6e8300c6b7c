"""A large body is one client's affair: the others are answered while it is read."""

from __future__ import annotations

import fcntl
import gzip
import json
import resource
import sys
import termios
import threading
import time
from typing import Any, Self

import httpx
import psutil
import pytest

from omlx.server import large_json
from tests.server.local import LocalServer
from tests.support.processes import command_line


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
    """The largest that is taken. Parsed between their requests, it would let one or two of them through."""
    template = "{{$a := 1}}" * 9_900
    create = {"model": "many", "from": "plain", "template": template, "stream": False}
    others, answers = 0, list[httpx.Response]()

    def send() -> None:
        with scripted.client() as client:
            answers.append(client.post("/api/create", json=create, timeout=120))

    sender = threading.Thread(target=send)
    with scripted.client() as client:
        client.get("/api/version")
        sender.start()
        while sender.is_alive():
            client.get("/api/version", timeout=120)
            others += 1
        client.request("DELETE", "/api/delete", json={"model": "many"})
    sender.join()
    assert answers[0].status_code == 200
    assert others > 3


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


class Pauses:
    """The longest that this process's threads were kept from running Python, in s."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        last = time.monotonic()
        while not self._done.wait(0.005):
            now = time.monotonic()
            self.longest, last = max(self.longest, now - last), now

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


SIZE = 100_000_000
CASES = {
    "words": (b"four words in here. " * (SIZE // 20), 404, "nope"),
    "escaped quotes": (b'\\"' * (SIZE // 2), 404, "nope"),
    "lone surrogates": (b"\\ud800" * (SIZE // 6), 404, "nope"),
    "damaged UTF-8": (b"\xff" * SIZE, 404, "nope"),
    "long numbers": (b'","n":[' + b",".join([b"5" * 4000] * (SIZE // 4001)) + b'],"a":"', 400, "out of range"),
    "a number without end": (b'","n":' + b"5" * SIZE, 400, "unexpected EOF"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", CASES)
def test_whatever_is_in_a_large_body_python_is_not_held(own_server: LocalServer, kind: str) -> None:
    """What the decoder does with these takes up to twenty seconds of Python's lock, here or in a process that ends."""
    inside, status, said = CASES[kind]
    body = b'{"model":"nope","prompt":"' + inside + (b'"}' if "end" not in kind else b"")
    with own_server.client() as client, Pauses() as pauses:
        client.post("/api/generate", content=b'{"model":"nope","prompt":"' + b"a" * 9_000_000 + b'"}')
        pauses.longest = 0.0
        answer = client.post("/api/generate", content=body, timeout=120)
        longest = pauses.longest
    # What a slow core gives up, a fast one may finish.
    assert (answer.status_code, said in answer.text) == (status, True) or "takes too much time" in answer.text
    assert longest < 1.0


@pytest.mark.skipif(sys.platform != "linux", reason="reads another process's limits and pipe")
def test_a_decoder_that_the_kernel_ends_costs_its_own_request_and_the_next_body_is_read(
    own_server: LocalServer,
) -> None:
    """The process is ended here as at its limit of CPU time, which a fast machine does not reach with any body."""
    large = b'{"model":"nope","prompt":"' + b"a" * 9_000_000 + b'"}'
    refused: list[httpx.Response] = []

    def send() -> None:
        with own_server.client() as client:
            refused.append(client.post("/api/generate", content=large, timeout=120))

    with own_server.client() as client:
        assert client.post("/api/generate", content=large).status_code == 404
        (reader,) = (child for child in psutil.Process().children() if "large_json" in command_line(child))
        limit, _ = resource.prlimit(reader.pid, resource.RLIMIT_CPU)
        assert 2 <= limit <= 2 + 0.3 + sum(reader.cpu_times()[:2]) + 1
        reader.suspend()
        sender = threading.Thread(target=send)
        sender.start()
        while not unread_bytes(reader.pid):
            time.sleep(0.01)
        reader.kill()
        sender.join()
        assert refused[0].status_code == 413
        assert "takes too much time or memory" in refused[0].json()["error"]
        assert client.post("/api/generate", content=large).status_code == 404


def unread_bytes(pid: int) -> int:
    """Bytes that wait in the pipe of a process's standard input."""
    with open(f"/proc/{pid}/fd/0", "rb", buffering=0) as pipe:
        size = fcntl.ioctl(pipe, termios.FIONREAD, bytes(4))
    return int.from_bytes(size, sys.byteorder)


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b" " * 9_000_000, 400, "missing request body"),
        (b'{"model":"nope"}' + b"x" * 9_000_000, 404, "nope"),
        (b'{"model":5,"prompt":"' + b"a" * 9_000_000 + b'"}', 400, "cannot unmarshal number"),
        (b'{"model":"nope","prompt":"' + b"a" * 9_000_000 + b'\\ud800"}', 404, "nope"),
        (b'{"model":"nope","prompt":' + b"[" * 9_000_000, 413, "more than 50,000 arrays"),
        (b'{"model":"nope","prompt":"' + b"a" * 9_000_000 + b'" x}', 400, "invalid character 'x'"),
        (b'{"model":"nope","n":' + b"[" * 40_000 + b'"' + b"a" * 9_000_000, 400, "exceeded max depth"),
    ],
)
def test_a_very_large_body_gets_the_answer_of_a_small_one(
    http: httpx.Client, body: bytes, status: int, said: str
) -> None:
    answer = http.post("/api/generate", content=body, timeout=120)
    assert (answer.status_code, said in answer.text) == (status, True), answer.text[:200]


def test_a_route_takes_as_much_as_it_has_use_for(own_server: LocalServer) -> None:
    """A name needs no megabytes; texts less than images."""
    with own_server.client() as client:
        for path, size, said in (
            ("/api/show", 1_100_000, "1 MB, the most that this route takes"),
            ("/api/omlx/pin", 1_100_000, "1 MB, the most that this route takes"),
            ("/api/pull", 1_100_000, "1 MB, the most that this route takes"),
            ("/api/embed", 33_000_000, "32 MB; raise the setting max_body"),
            ("/v1/rerank", 33_000_000, "32 MB; raise the setting max_body"),
            ("/api/create", 33_000_000, "32 MB; raise the setting max_body"),
        ):
            body = b'{"model":"nope","input":"' + b"a" * size + b'"}'
            for content, encoding in ((body, "identity"), (gzip.compress(body, 1), "gzip")):
                answer = client.post(path, content=content, headers={"content-encoding": encoding}, timeout=60)
                assert answer.status_code == 413, path
                assert said.partition(" MB")[0] in answer.text
                assert said.rpartition(" ")[2] in answer.text


def test_memory_of_a_reader_is_watched_where_the_kernel_does_not(
    own_server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS, where the limit of address space is taken and not kept."""
    slow = b'{"model":"nope","prompt":"' + b"\\ud800\\n" * 1_200_000 + b'"}'
    with own_server.client() as client:
        assert client.post("/api/generate", content=slow, timeout=120).status_code == 404
        monkeypatch.setattr(large_json, "_AT_START", -(1 << 40))
        refused = client.post("/api/generate", content=slow, timeout=120)
    assert (refused.status_code, "too much time or memory" in refused.text) == (413, True)
