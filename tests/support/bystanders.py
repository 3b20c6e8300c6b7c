"""*Bystanders*: clients that are never without a stream, and how long each of them waited for the next piece.

The machine that tests run on may be slow, or busy with other things. So a wait is compared with the time that a fixed
amount of Python takes at that moment: `allowed_s` of a quiet machine become as many times more.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Mapping

FIXED_S = 0.2
"""What the fixed amount of Python takes on the slowest quiet machine."""
_ANSWER_S = 300.0


def machine_factor() -> float:
    """How many times slower than a quiet machine this one is now, at least 1."""
    begun = time.monotonic()
    sum(number * number for number in range(2_000_000))
    return max(1.0, (time.monotonic() - begun) / FIXED_S)


class Streams:
    """A client on each model that asks for the next stream when one ends; `first_piece`: whether the wait for the first
    piece of a stream counts too."""

    def __init__(self, port: int, allowed_s: Mapping[str, float], *, first_piece: bool = True) -> None:
        self.allowed_s = dict(allowed_s)
        self.longest = dict.fromkeys(allowed_s, 0.0)
        self.pieces = dict.fromkeys(allowed_s, 0)
        self.usual = dict.fromkeys(allowed_s, 0.0)
        self.late: list[str] = []
        self._port = port
        self._first_piece = first_piece
        self._begun = 0.0
        self._done = threading.Event()
        self._threads = [threading.Thread(target=self._stream, args=(model,)) for model in allowed_s]
        for thread in self._threads:
            thread.start()

    def _stream(self, model: str) -> None:
        body = {"model": model, "prompt": "Tell me a story.", "options": {"num_predict": 100}}
        while not self._done.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_ANSWER_S)
            last = time.monotonic()
            connection.request("POST", "/api/generate", json.dumps(body))
            answer = connection.getresponse()
            assert answer.status == 200
            counts = self._first_piece
            while answer.readline():
                now = time.monotonic()
                if counts:
                    self._note(model, now - max(last, self._begun))
                last, counts = time.monotonic(), True
                self.pieces[model] += 1
            connection.close()

    def _note(self, model: str, waited: float) -> None:
        window = self._begun
        self.longest[model] = max(self.longest[model], waited)
        if waited > self.usual[model] + self.allowed_s[model] and any(self.usual.values()):
            most = self.usual[model] + self.allowed_s[model] * machine_factor()
            if waited > most and window == self._begun:  # measuring takes a while: it may be forgotten by now
                self.late.append(f"{model} waited for {waited:.1f} s, at most {most:.1f}")

    def settle(self, seconds: float = 3.0) -> None:
        """Wait until each model is loaded and streams; what is waited for in the next seconds is usual."""
        while min(self.pieces.values()) < 200:
            time.sleep(0.05)
        self.begin()
        time.sleep(seconds)
        self.usual = {model: max(waited, 1e-3) for model, waited in self.longest.items()}

    def begin(self) -> None:
        """Forget the longest waits and who was late; what was waited before, maybe for this process, does not count."""
        self._begun = time.monotonic()
        self.longest = dict.fromkeys(self.longest, 0.0)
        self.late = []

    def end(self) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()
