"""A real server whose sensors are a file of readings, and the streams that show what its power policy does."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx


class Readings:
    """The file that the setting `power_readings` of the server at `url` names."""

    def __init__(self, file: Path, url: str) -> None:
        self._file, self._url = file, url

    def say(self, **readings: Any) -> float:
        """What the sensors say from now on; nothing: there are none. Returns the moment."""
        if readings:
            fresh = self._file.with_suffix(".new")
            fresh.write_text(json.dumps(readings))
            fresh.replace(self._file)
        else:
            self._file.unlink(missing_ok=True)
        return time.monotonic()

    def power(self) -> dict[str, Any]:
        """What the server says of its power policy."""
        found: dict[str, Any] = httpx.get(f"{self._url}/api/omlx/status", trust_env=False, timeout=60).json()["power"]
        return found

    def until(self, holds: Callable[[dict[str, Any]], bool], within: float = 60.0) -> None:
        deadline = time.monotonic() + within
        while not holds(self.power()):
            assert time.monotonic() < deadline, self.power()
            time.sleep(0.05)


class Stream:
    """A request whose reply has no end, and when each of its pieces came. Use as a context manager."""

    def __init__(self, url: str, body: dict[str, Any], priority: str) -> None:
        self._url, self._body, self._priority = url, body, priority
        self._ending = threading.Event()
        self._times: list[float] = []
        self._thread = threading.Thread(target=self._read)

    def _read(self) -> None:
        headers = {"X-OMLX-Priority": self._priority}
        with httpx.stream(
            "POST", f"{self._url}/api/chat", json=self._body, headers=headers, timeout=300, trust_env=False
        ) as reply:
            for _ in reply.iter_lines():
                self._times.append(time.monotonic())
                if self._ending.is_set():
                    return

    def __enter__(self) -> Self:
        self._thread.start()
        self.wait_for(20)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self._ending.set()
        self._thread.join(120)

    def wait_for(self, more: int) -> None:
        """Until so many more pieces have come."""
        wanted, deadline = len(self._times) + more, time.monotonic() + 120
        while len(self._times) < wanted:
            assert time.monotonic() < deadline and self._thread.is_alive()
            time.sleep(0.01)

    def rests(self) -> bool:
        """Whether nothing comes for a second."""
        now = time.monotonic()
        return self.rate(now, now + 1) == 0

    def rate(self, begin: float, end: float) -> float:
        """Pieces per second between two moments."""
        time.sleep(max(0.0, end - time.monotonic()))
        return sum(begin <= moment < end for moment in self._times) / (end - begin)


def first_token_s(url: str, body: dict[str, Any]) -> float:
    """Seconds until an interactive request has its first token."""
    begun = time.monotonic()
    with httpx.stream("POST", f"{url}/api/chat", json=body, timeout=120, trust_env=False) as reply:
        next(reply.iter_lines())
        return time.monotonic() - begun
