"""The log, as text and as JSON: which request a line is about; nothing from outside forges one, no prompt gets in."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator

import httpx
import pytest

from omlx.record import PROMPTS
from omlx.server import log
from tests.server.local import LocalServer, eventually


class Written:
    """What has been written to stderr so far."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self._text = ""

    def __call__(self) -> str:
        self._text += self._capsys.readouterr().err
        return self._text


@pytest.fixture
def written(capsys: pytest.CaptureFixture[str]) -> Iterator[Written]:
    """What the log says from now on; the loggers are as before afterwards."""
    parts = [logging.getLogger(name) for name in ("omlx", "omlx_registry", "uvicorn")]
    before = [(part, part.handlers, part.propagate, part.level) for part in parts]
    yield Written(capsys)
    for part, handlers, propagate, level in before:
        part.handlers, part.propagate = handlers, propagate
        part.setLevel(level)
    PROMPTS.setLevel(logging.CRITICAL)


def say(http: httpx.Client, prompt: str, request_id: str = "") -> httpx.Response:
    body = {"model": "plain", "messages": [{"role": "user", "content": prompt}], "stream": False}
    return http.post("/api/chat", json=body, headers={"x-request-id": request_id} if request_id else {})


def test_every_answer_has_an_id_and_the_log_knows_it(http: httpx.Client, written: Written) -> None:
    log.configure("info")
    first, second = say(http, "say A"), http.get("/nowhere")
    names = [response.headers["x-request-id"] for response in (first, second)]
    assert len({*names}) == 2
    assert all(re.fullmatch(r"r[0-9a-f]{4}-\d+", name) for name in names)
    assert eventually(lambda: f"[{names[1]}] GET /nowhere 404" in written())
    assert f"[{names[0]}] POST /api/chat 200" in written()


@pytest.mark.parametrize("given", ["trace-1", "0f8fad5b-d9cb-469f-a165-70867728950e", "A.b_c", "x" * 64])
def test_a_callers_own_id_is_kept(http: httpx.Client, given: str) -> None:
    assert http.get("/api/version", headers={"x-request-id": given}).headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["two words", "x" * 65, "a;b", "<b>", "é".encode(), "a\tb", "../x"])
def test_an_id_that_could_do_harm_is_replaced(http: httpx.Client, given: str | bytes) -> None:
    found = http.get("/api/version", headers={"x-request-id": given}).headers["x-request-id"]
    assert re.fullmatch(r"r[0-9a-f]{4}-\d+", found)


def test_the_pools_and_the_runners_lines_name_the_request(http: httpx.Client, written: Written) -> None:
    log.configure("info")
    http.post("/api/generate", json={"model": "plain", "keep_alive": 0})
    assert eventually(lambda: http.get("/api/ps").json()["models"] == [] or "unloaded" in written())
    say(http, "log a runner's own warning", "job-7")
    assert eventually(lambda: "[job-7] WARNING: plain:latest: a runner's own warning" in written())
    assert re.search(r"\[job-7\] plain:latest is loaded", written())


def test_json_lines_hold_the_same(http: httpx.Client, written: Written) -> None:
    log.configure("info", form="json")
    name = http.get("/api/version").headers["x-request-id"]
    assert eventually(lambda: name in written())
    (line,) = [json.loads(text) for text in written().splitlines() if name in text]
    assert line.pop("time").endswith("+00:00")
    assert line.pop("message").startswith("GET /api/version 200 ")
    assert line == {"level": "info", "logger": "omlx.server", "request_id": name}


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize(
    "evil",
    [
        "/a%0a2026-01-01 00:00:00 forged",
        "/a%0d%0aforged",
        "/a%1b[2Jforged",
        "/a%e2%80%a8forged",
        "/a%c2%85forged",
        "/a%e2%80%aeforged",
    ],
)
def test_nothing_from_outside_makes_a_line_of_its_own(
    http: httpx.Client, written: Written, form: str, evil: str
) -> None:
    log.configure("info", form=form)
    name = http.get(evil).headers["x-request-id"]
    assert eventually(lambda: name in written())
    (line,) = [text for text in written().splitlines() if "forged" in text]
    assert name in line
    assert line.isprintable()


def test_a_traceback_cannot_forge_a_line_either(written: Written) -> None:
    log.configure("info")
    try:
        raise ValueError("bad\n2026-01-01 00:00:00 forged\x1b[31m")
    except ValueError:
        log.logger.exception("it failed")
    lines = written().splitlines()
    assert lines[0].endswith("ERROR: it failed")
    assert all(line.startswith("    ") for line in lines[1:])
    assert "\x1b" not in written()


def test_prompts_are_logged_only_where_they_are_asked_for(http: httpx.Client, written: Written) -> None:
    log.configure("debug")
    name = say(http, "say secret-one").headers["x-request-id"]
    assert eventually(lambda: f"[{name}] POST" in written())
    assert "secret-one" not in written()
    log.configure("info", prompts=True)
    name = say(http, "say secret-two").headers["x-request-id"]
    assert eventually(lambda: f"[{name}] POST" in written())
    assert f'[{name}] prompt: [{{"role": "system", "content": "Be kind."}}' in written()
    assert "secret-two" in written()


def test_a_failed_request_leaves_no_prompt_in_the_log(
    http: httpx.Client, written: Written, scripted: LocalServer
) -> None:
    log.configure("debug")
    say(http, "fail internal secret-three is in the message")
    name = say(http, "break internal no secret-four").headers["x-request-id"]
    assert eventually(lambda: f"[{name}] POST" in written())
    assert "secret-three" not in written()
    assert "secret-four" not in written()


def test_a_warning_that_repeats_is_said_once_with_a_count() -> None:
    now = [0.0]
    repeats = log.Repeats(lambda: now[0])

    def said(text: str, level: int = logging.WARNING) -> list[str]:
        record = logging.LogRecord("omlx.runner", level, "", 0, "%s", (text,), None)
        return [one.getMessage() for one in repeats.sift(record)]

    assert said("record 1a2b of 7 is 50% written") == ["record 1a2b of 7 is 50% written"]
    assert [said(f"record {number} of 7 is 50% written") for number in range(360)] == [[]] * 360
    assert said("another warning") == ["another warning"]
    for _ in range(2):
        assert said("an error of request 5", logging.ERROR) == ["an error of request 5"]
    now[0] = 61.0
    assert said("a request", logging.INFO) == ["record 359 of 7 is 50% written (360 times more)", "a request"]
    assert said("record 9 of 7 is 50% written") == ["record 9 of 7 is 50% written"]
    assert said("another warning") == ["another warning"]
