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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pytest
from litestar.handlers import HTTPRouteHandler
from omlx_registry import Registry

from omlx.server.app import HANDLERS
from omlx.server.route_info import BodyKind
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


class Route(NamedTuple):
    method: str
    path: str
    body: BodyKind


def routes() -> list[Route]:
    """Every method and path of the application."""
    found = set[Route]()
    for handler in HANDLERS:
        assert isinstance(handler, HTTPRouteHandler)
        methods = {str(method) for method in handler.http_methods if method != "HEAD"}
        found |= {Route(method, path, handler.opt["body"]) for path in handler.paths for method in methods}
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
        "images": {"prompt": "a", "images": ["A" * characters], "messages": [turn | {"images": ["A" * characters]}]},
        "escapes": {"prompt": "\ud800\n" * (characters // 3), "input": "a"},
        "long numbers": {"prompt": "a", "options": {"n": [int("5" * 4000)] * (characters // 2000)}},
    }  # fmt: skip


MODERATE = bodies(objects=9_000, texts=20_000, numbers=140_000, characters=230_000)
LARGEST: Mapping[BodyKind, Callable[[], Mapping[str, Mapping[str, Any]]]] = {
    "names": lambda: MODERATE,
    "texts": lambda: bodies(objects=49_000, texts=190_000, numbers=1_900_000, characters=7_500_000),
    "media": lambda: bodies(objects=49_000, texts=190_000, numbers=1_900_000, characters=30_000_000),
}
"""Bodies as large as a route takes, of each kind."""


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


def delays(port: int, sizes: Mapping[str, Mapping[str, Any]], asked: Sequence[Route]) -> list[str]:
    """What was delayed beyond its limit."""
    streams, late = Streams(port), list[str]()
    try:
        while streams.pieces < 200:
            time.sleep(0.05)
        streams.begin()
        time.sleep(3)
        usual = streams.longest
        for method, path, _ in asked:
            for kind, fields in sizes.items() if method != "GET" else [("nothing", {})]:
                model = "nope" if path in CHANGING else SAME
                common = {"model": model, "stream": False, "max_tokens": 1, "options": {"num_predict": 1}}
                made = {"model": "made", "from": SAME} if path == "/api/create" else {}
                body = json.dumps(common | dict(fields) | made).encode()
                streams.begin()
                status = ask(port, method, re.sub(r"{(\w+):\w+}", r"\1", path), body)
                print(f"{method} {path} {kind}: {len(body):,} bytes, {status}, {streams.longest}")
                assert status
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
    everyday = {kind: MODERATE[kind] for kind in ("objects", "too many objects")}
    assert delays(server.port, everyday, [route for route in routes() if route.method == "POST"]) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("body", LARGEST)
def test_no_route_delays_others_with_the_largest_bodies(server: ServerProcess, body: BodyKind) -> None:
    assert delays(server.port, LARGEST[body](), [route for route in routes() if route.body == body]) == []
