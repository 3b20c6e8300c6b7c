"""No request's work delays others: every route is given the largest bodies it takes while two models stream.

Delays are judged by the speed of this machine at this moment: by the gaps of the same streams while nothing else is
asked, and by the time that a fixed amount of Python takes (`tests/support/bystanders.py`).
"""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from omlx.server.route_info import BodyKind
from tests.support.bystanders import Streams
from tests.support.routes import ASKED, BOUNDARY, OTHER, SAME, SPEECH, Route, add_models, all_routes, form
from tests.support.server import ServerProcess
from tests.support.tiny_whisper import as_wav, sound

DELAY_S = {SAME: 2.0, OTHER: 1.0}
"""How long a stream may be delayed on a quiet machine."""
MOST_ANSWER_S = 300.0


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


def forms() -> Mapping[str, tuple[bytes, str]]:
    """Bodies of the audio routes, and their types."""
    model, wav, noise = ("model", "", SPEECH.encode()), as_wav(sound(1)), bytes(range(256)) * 4000
    ones = ("model", "", b"1"), ("file", "a.wav", wav)
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="a"\r\n'.encode()
    kind = form([])[1]
    return {
        "a long recording": form([model, ("file", "a.wav", as_wav(sound(600)))]),
        "no audio": form([model, ("file", "a.mp3", noise * 100)]),
        "many parts": form([*ones] * 400),
        "large parts": form([(f"f{at}", "a", noise) for at in range(100)]),
        "nothing but boundaries": ((f"--{BOUNDARY}\r\n".encode()) * 1_000_000, kind),
        "nothing but line ends": (b"\r\n" * 15_000_000, kind),
        "headers of a part": (head + b"a: b\r\n" * 5_000_000, kind),
        "a header without end": (head + b"a: " + b"b" * 30_000_000, kind),
        "a part without end": (head + b"\r\n" + b"-" * 30_000_000, kind),
        "boundaries that are none": (head + b"\r\n" + (f"\r\n--{BOUNDARY[:-1]}".encode()) * 3_000_000, kind),
        "a boundary of a megabyte": (b"a" * 1_000_000, f"multipart/form-data; boundary={'a' * 500_000}"),
    }


MODERATE = bodies(objects=9_000, texts=20_000, numbers=140_000, characters=230_000)
LARGEST: Mapping[BodyKind, Callable[[], Mapping[str, Mapping[str, Any]]]] = {
    "names": lambda: MODERATE,
    "texts": lambda: bodies(objects=49_000, texts=190_000, numbers=1_900_000, characters=7_500_000),
    "media": lambda: bodies(objects=49_000, texts=190_000, numbers=1_900_000, characters=30_000_000),
}
"""Bodies as large as a route takes, of each kind."""


ENDLESS = {"type": "string", "allOf": [{"pattern": f"^(a|b)*a(a|b){{{at}}}"} for at in range(5, 100, 3)]}
"""A schema that takes its compiler minutes and gigabytes."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    found = ServerProcess(tmp_path_factory.mktemp("server"), env={"HF_ENDPOINT": "http://127.0.0.1:9"})
    add_models(found.models, tmp_path_factory.mktemp("models"))
    found.start()
    yield found
    found.stop()


@pytest.fixture(scope="module")
def routes(tmp_path_factory: pytest.TempPathFactory) -> list[Route]:
    return all_routes(tmp_path_factory.mktemp("none"))


def ask(port: int, route: Route, body: bytes, kind: str) -> int:
    """The status of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=MOST_ANSWER_S)
    try:
        connection.request(route.method, route.url, body if route.method != "GET" else None, {"content-type": kind})
        answer = connection.getresponse()
        while answer.read1(1 << 20) and route.method != "GET":
            pass  # what a GET streams may have no end
        return answer.status
    finally:
        connection.close()


def requests(route: Route, sizes: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, bytes, str]]:
    """Kinds of requests to a route, their bodies and content types."""
    if route.method == "GET":
        yield "nothing", b"", "application/json"
    elif route.is_form:
        yield from ((kind, *body) for kind, body in forms().items())
    else:
        yield from ((kind, *route.body_with(fields)) for kind, fields in sizes.items())


def delays(port: int, sizes: Mapping[str, Mapping[str, Any]], asked: Sequence[Route]) -> list[str]:
    """What was delayed beyond its limit."""
    streams, late = Streams(port, DELAY_S), list[str]()
    try:
        streams.settle()
        for route in asked:
            for kind, body, content_type in requests(route, sizes):
                streams.begin()
                status = ask(port, route, body, content_type)
                print(f"{route.name} {kind}: {len(body):,} bytes, {status}, {streams.longest}")
                assert status
                late += [f"{route.name} {kind}: {text}" for text in streams.late]
    finally:
        streams.end()
    return late


def test_every_route_is_asked_for_what_it_does(server: ServerProcess, routes: list[Route]) -> None:
    """A body that is refused at first sight would tell nothing of its work."""
    by_name = {route.name: route for route in routes}
    assert by_name.keys() == ASKED.keys()
    statuses = {name: ask(server.port, by_name[name], *by_name[name].small_body()) for name in ASKED}
    assert statuses == {name: asked.status for name, asked in ASKED.items()}


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.slow)])
def test_no_route_delays_others(server: ServerProcess, routes: list[Route], every: int) -> None:
    """Two kinds, one of moderate size; what the other would do without its limit is far beyond the bound."""
    everyday = {kind: MODERATE[kind] for kind in ("objects", "too many objects")}
    asked = [route for route in routes if route.method == "POST" and not route.is_form][::every]
    assert delays(server.port, everyday, asked) == []


@pytest.mark.slow
def test_a_schema_that_takes_its_compiler_for_ever_delays_nobody(server: ServerProcess, routes: list[Route]) -> None:
    """Five at once: more than may be compiled at a time."""
    chat = next(route for route in routes if route.path == "/api/chat")
    bodies = [chat.body_with({"format": ENDLESS | {"title": f"{at}"}}) for at in range(5)]
    streams = Streams(server.port, DELAY_S)
    try:
        streams.settle()
        with ThreadPoolExecutor() as threads:
            assert {*threads.map(lambda body: ask(server.port, chat, *body), bodies)} == {400}
        assert streams.late == []
    finally:
        streams.end()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("body", LARGEST)
@pytest.mark.parametrize("part", range(4))
def test_no_route_delays_others_with_the_largest_bodies(
    server: ServerProcess, routes: list[Route], body: BodyKind, part: int
) -> None:
    """In four parts, so that each takes a few minutes only."""
    asked = [route for route in routes if route.body == body]
    assert delays(server.port, LARGEST[body](), asked[part::4]) == []
