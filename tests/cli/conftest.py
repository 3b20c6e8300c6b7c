"""Fixtures of the command line's tests: how a user's shell calls `omlx`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest


class Ran(NamedTuple):
    """What a command left: exit code and both streams."""

    code: int
    out: str
    err: str


Omlx = Callable[..., Ran]


@pytest.fixture
def omlx() -> Omlx:
    """Call `omlx WORDS…`; keyword `host` is OLLAMA_HOST, `stdin` what is piped in (default: nothing, /dev/null)."""

    def call(*words: str, host: str = "127.0.0.1:1", stdin: str | None = None, timeout: float = 60, **env: str) -> Ran:
        done = subprocess.run(
            [sys.executable, "-m", "omlx", *words],
            env={**os.environ, "OLLAMA_HOST": host, "OMLX_AUTOSTART": "false", **env},
            stdin=subprocess.DEVNULL if stdin is None else None,
            input=None if stdin is None else stdin.encode(),
            capture_output=True,
            timeout=timeout,
        )
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())

    return call
