"""A *house* is a real server with one taught model, and the examination of it after a fault."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.support.lessons import lesson
from tests.support.processes import is_helper
from tests.support.server import ServerProcess
from tests.support.tiny import DATA

HELLO = lesson("hello")
MODEL = "taught"
_SPARE_FILES = 12
"""Files a sound server may have open beyond those before the fault: pooled connections, the cache's index."""


def ask(url: str, *, timeout: float = 120, **fields: Any) -> httpx.Response:
    """One whole greedy answer."""
    body = {"model": MODEL, "messages": HELLO.messages, "stream": False, "options": {"temperature": 0}, **fields}
    return httpx.post(f"{url}/api/chat", json=body, timeout=timeout, trust_env=False)


def _counts(child: psutil.Process) -> bool:
    """Whether a process of the server is one that has to belong to a model: it lives, and is no helper of a runner."""
    try:
        return child.status() != psutil.STATUS_ZOMBIE and not is_helper(child)
    except psutil.NoSuchProcess:
        return False


class House(ServerProcess):
    """Starts with the model registered and answering."""

    def __init__(self, folder: Path, *, env: Mapping[str, str] | None = None, open_files: int | None = None) -> None:
        quiet = {"OMLX_SPARE_RUNNER": "false", "OMLX_SHUTDOWN_GRACE": "1", "OMLX_STALL_TIMEOUT": "6"}
        super().__init__(folder, env={**quiet, **(env or {})}, open_files=open_files)
        self.files_before = 0
        self.spares = int((env or {}).get("OMLX_SPARE_RUNNER") == "true")
        """Runners that may be there without a model."""

    def start(self, *, timeout_s: float = 300.0) -> House:
        super().start(timeout_s=timeout_s)
        return self

    def furnish(self) -> House:
        """Register the model and have it answer once, so that everything that stays open is open."""
        self.register(MODEL, "taught-qwen3")
        self.answers()
        self.files_before = self.open_files()
        return self

    def register(self, name: str, folder: str) -> None:
        """Make a model of one of the folders in tests/data."""
        files = {path.name: self.upload(path) for path in (DATA / folder).iterdir() if path.is_file()}
        made = self.post("/api/create", {"model": name, "files": files, "stream": False})
        assert made.json() == {"status": "success"}, made.text

    def upload(self, path: Path) -> str:
        data = path.read_bytes()
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        httpx.post(f"{self.url}/api/blobs/{digest}", content=data, timeout=60, trust_env=False).raise_for_status()
        return digest

    def post(self, path: str, body: Any = None, timeout: float = 120) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", json=body or {}, timeout=timeout, trust_env=False)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(f"{self.url}/api/omlx/status", timeout=60, trust_env=False).json()
        return found

    def runner(self) -> psutil.Process:
        """The process of the loaded model."""
        (model,) = self.status()["models"]
        return psutil.Process(model["pid"])

    def answers(self) -> None:
        answer = ask(self.url)
        assert answer.status_code == 200, answer.text
        assert answer.json()["message"]["content"] == HELLO.content

    def open_files(self) -> int:
        assert self.process is not None
        return psutil.Process(self.process.pid).num_fds()

    def examine(self, *, damaged: bool = False) -> None:
        """Everything is as it should be: answers, slots, processes, open files, the store and the cache.

        `damaged`: the fault was in the files, whose repair the test looks at itself.
        """
        self.answers()
        assert self.process is not None
        own = psutil.Process(self.process.pid)
        for _ in range(1200):  # loads that were given up end one after the other
            status = self.status()
            busy = [(m["running"], m["waiting"]) for m in status["models"]]
            pids = {model["pid"] for model in status["models"]}
            children = {child.pid for child in own.children(recursive=True) if _counts(child)}
            at_home = pids <= children and len(children - pids) <= self.spares
            quiet = status["waiting"] == 0 and not any(map(any, busy)) and at_home
            if quiet and own.num_fds() <= self.files_before + _SPARE_FILES:
                break
            time.sleep(0.1)
        else:
            raise AssertionError(f"not at rest: {status}, children {children}, {own.num_fds()} files open")
        assert "Traceback" not in self.log_text()
        if not damaged:
            verified = self.post("/api/omlx/verify").json()
            assert (verified["damaged"], verified["checked"] > 0) == ([], True)
            assert self.post("/api/omlx/cache/verify").json()["damaged"] == 0

    def memory(self) -> int:
        """Bytes resident in the server process."""
        assert self.process is not None
        return int(psutil.Process(self.process.pid).memory_info().rss)
