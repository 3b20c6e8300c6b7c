"""No request's work delays others: every route is given the largest bodies it takes while two models stream.

Delays are judged by the speed of this machine at this moment: by the gaps of the same streams while nothing else is
asked, and by the time that a fixed amount of Python takes (`tests/support/bystanders.py`).
"""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pytest
from litestar.handlers import HTTPRouteHandler
from omlx_registry import Registry

from omlx.server.app import HANDLERS
from omlx.server.route_info import BodyKind
from tests.support.bystanders import Streams
from tests.support.server import ServerProcess
from tests.support.tiny import DATA

SAME, OTHER = "same", "other"
"""Models: the one that is asked, and one that is not."""
DELAY_S = {SAME: 2.0, OTHER: 1.0}
"""How long a stream may be delayed on a quiet machine."""
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
    streams, late = Streams(port, DELAY_S), list[str]()
    try:
        streams.settle()
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
                late += [f"{method} {path} {kind}: {text}" for text in streams.late]
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
