"""Reading a stream of server-sent events in tests, strictly: anything that is no well-formed event is an error."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import httpx


class Event(NamedTuple):
    name: str
    data: Any
    """Decoded JSON, or the text where it is none ("[DONE]")."""


def events(response: httpx.Response) -> list[Event]:
    """All events of a whole stream."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream"
    assert response.text.endswith("\n\n")
    return [_event(block.split("\n")) for block in response.text.removesuffix("\n\n").split("\n\n")]


def _event(lines: list[str]) -> Event:
    name = lines.pop(0).removeprefix("event: ") if lines[0].startswith("event: ") else ""
    (line,) = lines
    assert line.startswith("data: ")
    text = line.removeprefix("data: ")
    return Event(name, json.loads(text) if text.startswith("{") else text)
