"""No request's work delays others: every route is given the largest bodies it takes while two models stream.

Delays are judged by the speed of this machine at this moment: by the gaps of the same streams while nothing else is
asked, and by the time that a fixed amount of Python takes.
"""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from litestar.handlers import HTTPRouteHandler
from omlx_registry import Registry

from omlx.server.app import HANDLERS
from tests.support.server import ServerProcess
from tests.support.tiny import DATA

SAME, OTHER = "same", "other"
"""Models: the one that is asked, and one that is not."""
DELAY_S = {SAME: 2.0, OTHER: 1.0}
"""How long a stream may be delayed on a machine that does the fixed amount of Python in FIXED_S."""
FIXED_S = 0.2
MOST_ANSWER_S = 300.0
CHANGING = ("/api/delete", "/api/copy", "/api/pull", "/api/push", "/api/omlx/aliases")
"""Routes that are asked about a model that is not there."""


def routes() -> list[tuple[str, str]]:
    """Every method and path of the application."""
    found = set[tuple[str, str]]()
    for handler in HANDLERS:
        assert isinstance(handler, HTTPRouteHandler)
        found |= {(str(method), path) for path in handler.paths for method in handler.http_methods if method != "HEAD"}
    return sorted(found)


def bodies(objects: int, texts: int, numbers: int, characters: int) -> Mapping[str, Mapping[str, Any]]:
    """Bodies of many small values and of few large ones; each route reads the fields it knows."""
    turn, text = {"role": "user", "content": "a"}, "four words in here. " * (characters // 20)
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}] * objects}]
    tool = {"type": "function", "function": {"name": "f"}}
    return {
        "objects": {key: [turn] * (objects // 3) for key in ("messages", "input", "documents")} | {"query": "q"},
        "parts": {"messages": parts, "input": parts},
        "tools": {"messages": [turn], "input": "a", "tools": [tool] * (objects // 2)},
        "texts": {key: ["a"] * (texts // 4) for key in ("input", "documents", "license", "prompt")} | {"query": "q"},
        "numbers": {key: [5] * numbers for key in ("prompt", "input", "context")},
        "context": {"prompt": "a", "context": [5] * numbers},
        "text": {"prompt": text, "input": text, "messages": [turn | {"content": text}]},
        "raw text": {"prompt": text, "raw": True, "query": text, "documents": [text], "system": text},
        "template": {"prompt": "a", "template": "{{.Prompt}}" * 9_900, "messages": [turn]},
        "parameters": {"parameters": {f"k{at}": 1 for at in range(texts // 2)}, "messages": [turn]},
        "too many objects": {"messages": [{}] * 400_000, "input": [{}] * 400_000},
    }  # fmt: skip


class Streams:
    """A client on each model that is never without a stream, and the longest it waited for anything."""

    def __init__(self, port: int) -> None:
        self.longest = {SAME: 0.0, OTHER: 0.0}
        self.pieces = 0
        self._port = port
        self._done = threading.Event()
        self._threads = [threading.Thread(target=self._stream, args=(model,)) for model in self.longest]
        for thread in self._threads:
            thread.start()

    def _stream(self, model: str) -> None:
        body = {"model": model, "prompt": "Tell me a story.", "options": {"num_predict": 100}}
        while not self._done.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=MOST_ANSWER_S)
            last = time.monotonic()
            connection.request("POST", "/api/generate", json.dumps(body))
            answer = connection.getresponse()
            assert answer.status == 200
            while answer.readline():
                now = time.monotonic()
                self.longest[model], last = max(self.longest[model], now - last), now
                self.pieces += 1
            connection.close()

    def begin(self) -> None:
        self.longest = dict.fromkeys(self.longest, 0.0)

    def end(self) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()


def fixed_work_s() -> float:
    begun = time.monotonic()
    sum(number * number for number in range(2_000_000))
    return time.monotonic() - begun


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    found = ServerProcess(tmp_path_factory.mktemp("server"))
    registry = Registry(found.models)
    registry.add_model_folder(SAME, DATA / "taught-qwen3", transfer="copy")
    registry.add_model_folder(OTHER, DATA / "taught-llama", transfer="copy")
    found.start()
    yield found
    found.stop()


def ask(port: int, method: str, path: str, body: bytes) -> int:
    """The status of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=MOST_ANSWER_S)
    connection.request(method, path, body if method != "GET" else None, {"content-type": "application/json"})
    answer = connection.getresponse()
    while answer.read1(1 << 20) and method != "GET":
        pass  # what a GET streams may have no end
    connection.close()
    return answer.status


def delays(port: int, sizes: Mapping[str, Mapping[str, Any]], asked: Sequence[tuple[str, str]]) -> list[str]:
    """What was delayed beyond its limit."""
    streams, late = Streams(port), list[str]()
    try:
        while streams.pieces < 200:
            time.sleep(0.05)
        streams.begin()
        time.sleep(3)
        usual = streams.longest
        for method, path in asked:
            for kind, fields in sizes.items() if method != "GET" else [("nothing", {})]:
                model = "nope" if path in CHANGING else SAME
                common = {"model": model, "stream": False, "max_tokens": 1, "options": {"num_predict": 1}}
                made = {"model": "made", "from": SAME} if path == "/api/create" else {}
                body = json.dumps(common | dict(fields) | made).encode()
                streams.begin()
                assert ask(port, method, re.sub(r"{(\w+):\w+}", r"\1", path), body)
                for name, longest in streams.longest.items():
                    most = usual[name] + DELAY_S[name]
                    if longest > most:
                        most = usual[name] + DELAY_S[name] * max(1.0, fixed_work_s() / FIXED_S)
                    if longest > most:
                        late.append(f"{method} {path} {kind}: {name} {longest:.1f} s, at most {most:.1f}")
    finally:
        streams.end()
    return late


def test_no_route_delays_others(server: ServerProcess) -> None:
    """Two kinds, one of moderate size; what the other would do without its limit is far beyond the bound."""
    found = bodies(objects=9_000, texts=20_000, numbers=200_000, characters=1_000_000)
    everyday = {kind: found[kind] for kind in ("objects", "too many objects")}
    assert delays(server.port, everyday, [route for route in routes() if route[0] == "POST"]) == []


@pytest.mark.slow
def test_no_route_delays_others_with_the_largest_bodies(server: ServerProcess) -> None:
    largest = bodies(objects=49_000, texts=190_000, numbers=1_900_000, characters=30_000_000)
    assert delays(server.port, largest, routes()) == []
