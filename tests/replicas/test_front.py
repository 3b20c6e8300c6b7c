"""Two real servers behind a third: conversations stay, failures move on, streams come through."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from omlx_registry import Registry

from tests.support.lessons import STORY
from tests.support.server import ServerProcess
from tests.support.tiny import tiny_model
from tests.support.tiny_whisper import as_wav, make_whisper, sound

ENV = {"OMLX_SPARE_RUNNER": "false"}
PASSWORD = "s3cr3t:p4ss"
LETTERS = {"type": "grammar", "syntax": "regex", "definition": "[a-z ]{50000}"}
ENDLESS = {"model": "endless", "prompt": "x", "raw": True, "format": LETTERS, "options": {"num_predict": 40_000}}


class Three:
    """The servers, by their place: `front` stands for the two `replicas`."""

    def __init__(self, replicas: list[ServerProcess], front: ServerProcess) -> None:
        self.replicas = replicas
        self.front = front

    def chat(self, *turns: str, seconds: float = 60, **fields: Any) -> dict[str, Any]:
        roles = ["user", "assistant"] * len(turns)
        messages = [{"role": role, "content": text} for role, text in zip(roles, turns, strict=False)]
        body = {"model": "tiny", "messages": messages, "stream": False, "options": {"temperature": 0}}
        answer = httpx.post(f"{self.front.url}/api/chat", json={**body, **fields}, timeout=seconds, trust_env=False)
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    def busy(self) -> ServerProcess:
        """The replica where a reply is being written."""
        for _ in range(1200):
            for replica in self.replicas:
                status = httpx.get(f"{replica.url}/api/omlx/status", trust_env=False).json()
                if any(model["running"] for model in status["models"]):
                    return replica
            time.sleep(0.1)
        raise AssertionError("nobody writes")

    def loaded(self) -> list[bool]:
        """Which replicas have the model in memory."""
        urls = [replica.url for replica in self.replicas if replica.process and replica.process.poll() is None]
        return [bool(httpx.get(f"{url}/api/ps", trust_env=False).json()["models"]) for url in urls]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Three]:
    folder = tmp_path_factory.mktemp("replicas")
    replicas = [ServerProcess(folder / name, env=ENV) for name in ("one", "two")]
    for replica in replicas:
        registry = Registry(replica.models, [])
        registry.add_model_folder("tiny", tiny_model("qwen3", taught=True))
        registry.add_model_folder("endless", tiny_model("llama"))
        if replica is replicas[-1]:
            registry.add_model_folder("speech", make_whisper(folder / "speech"))
        replica.start()
    # Each has a password, which nobody asks for.
    urls = ",".join(replica.url.replace("://", f"://me:{PASSWORD}@") for replica in replicas)
    front = ServerProcess(folder / "front", env={**ENV, "OMLX_REPLICAS": urls}).start()
    yield Three(replicas, front)
    for server in (front, *replicas):
        server.stop()


def test_the_models_of_the_replicas_are_those_of_the_front(three: Three) -> None:
    names = [model["name"] for model in httpx.get(f"{three.front.url}/api/tags", trust_env=False).json()["models"]]
    assert sorted(names) == ["endless:latest", "speech:latest", "tiny:latest"]
    assert httpx.get(f"{three.front.url}/api/version", trust_env=False).json()["version"]


def test_a_conversation_stays_where_its_beginning_is_cached(three: Three) -> None:
    first = three.chat("Tell me a story.", think=False)
    assert first["message"]["content"] == STORY
    assert sorted(three.loaded()) == [False, True]
    second = three.chat("Tell me a story.", STORY, "What is 2 + 2?", think=False)
    assert second["cached_tokens"] > 0
    assert sorted(three.loaded()) == [False, True]


def test_streams_of_every_dialect_come_through(three: Three) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Tell me a story."}], "stream": True}
    with httpx.stream(
        "POST", f"{three.front.url}/v1/chat/completions", json=body, timeout=60, trust_env=False
    ) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert lines[-1] == "data: [DONE]"
    assert len(lines) > 3


def test_errors_are_those_of_the_replica(three: Three) -> None:
    answer = httpx.post(f"{three.front.url}/api/chat", json={"model": "nobody", "messages": []}, trust_env=False)
    assert answer.status_code == 404
    assert answer.json() == {"error": "model 'nobody' not found"}


def test_a_form_goes_to_a_replica_that_has_its_model(three: Three) -> None:
    """Whatever is in its file: it is not read as JSON."""
    strange = b"ID3" + b'{"":[],' * 1_500_000
    for data, status in ((as_wav(sound(1)), 200), (strange, 400)):
        for _ in range(3):
            answer = httpx.post(
                f"{three.front.url}/v1/audio/transcriptions",
                files={"file": data}, data={"model": "speech"}, timeout=120, trust_env=False,
            )  # fmt: skip
            assert answer.status_code == status, answer.text
    assert "not audio in a supported format" in answer.text


def test_models_are_looked_after_on_the_replicas(three: Three) -> None:
    answer = httpx.post(f"{three.front.url}/api/pull", json={"model": "x"}, trust_env=False)
    assert answer.status_code == 400
    assert f"127.0.0.1:{three.replicas[0].port}" in answer.json()["error"]
    assert "s3cr3t" not in answer.text and "p4ss" not in answer.text


@pytest.mark.parametrize(
    "path",
    ["/v1/models/../../api/tags", "/v1/models/%2e%2e/%2E./api/tags", "/v1/models/..%2f..%2fapi%2fdelete",
     "/v1/models/%252e%252e/x", "/v1/models/..%5c..%5capi", "/v1/models/."],
)  # fmt: skip
def test_dot_segments_reach_no_other_route_of_a_replica(three: Three, path: str) -> None:
    with socket.create_connection(("127.0.0.1", three.front.port), timeout=120) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        reply = b"".join(iter(lambda: connection.recv(65536), b""))
    assert reply.startswith(b"HTTP/1.1 400 ") and b"the path may not hold . or .. as a part" in reply


def test_a_client_that_leaves_frees_its_place(three: Three) -> None:
    with httpx.stream("POST", f"{three.front.url}/api/generate", json=ENDLESS, timeout=60, trust_env=False) as answer:
        next(answer.iter_lines())
    for _ in range(1200):
        states = [
            httpx.get(f"{replica.url}/api/omlx/status", trust_env=False).json()["models"] for replica in three.replicas
        ]
        if not any(model["running"] for models in states for model in models):
            return
        time.sleep(0.1)
    raise AssertionError(states)


def test_what_a_dead_replica_did_goes_to_the_other_and_broken_streams_say_so(three: Three) -> None:
    with httpx.stream("POST", f"{three.front.url}/api/generate", json=ENDLESS, timeout=90, trust_env=False) as answer:
        lines = answer.iter_lines()
        next(lines)
        three.busy().kill()
        rest = [line for line in lines if line]
        last = json.loads(rest[-1])
    assert "error" in last, (len(rest), last)
    assert three.chat("Tell me a story.", think=False, seconds=90)["message"]["content"] == STORY
    log = three.front.log_text()
    assert "does not answer" in log or "failed" in log or "broke off" in log
    assert "s3cr3t" not in log and "p4ss" not in log


def test_urls_that_are_none_stop_the_start(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no URL of a server"):
        ServerProcess(tmp_path, env={"OMLX_REPLICAS": "studio.local:11434"}).start()
    with pytest.raises(RuntimeError, match="no URL of a server") as refused:
        ServerProcess(tmp_path, env={"OMLX_REPLICAS": f"ftp://me:{PASSWORD}@studio.local"}).start()
    assert "p4ss" not in str(refused.value)
