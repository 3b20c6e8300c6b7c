"""A real `omlx serve` process for tests: own port, own store, own cache; its log is kept for the failure message."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import httpx


def free_port() -> int:
    """A port nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ServerProcess:
    """`omlx serve` as a user starts it. `start()` returns once /api/version answers; `stop()` is a SIGTERM.

    `folder` holds everything the server writes; a second ServerProcess on the same folder is a restart.
    """

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        env: Mapping[str, str] | None = None,
        open_files: int | None = None,
    ) -> None:
        self.folder = folder
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / "server.log"
        self.models = folder / "models"
        self.env = {
            **os.environ,
            "OMLX_HOST": f"127.0.0.1:{self.port}",
            "OMLX_MODELS": str(self.models),
            "OMLX_PAGED_SSD_CACHE_DIR": str(folder / "kv"),
            "OMLX_CONFIG": str(folder / "config.toml"),
            "PYTHONUNBUFFERED": "1",
            **(env or {}),
        }
        self.open_files_allowed = open_files
        """The hard limit of the process; None: that of the tests."""
        self.process: subprocess.Popen[bytes] | None = None
        self.started_in_s = 0.0

    def start(self, *, timeout_s: float = 300.0) -> ServerProcess:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "config.toml").touch()
        begun = time.monotonic()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "omlx", "serve"],
                env=self.env,
                stdout=log,
                stderr=log,
                preexec_fn=self._limit if self.open_files_allowed else None,
            )
        while time.monotonic() - begun < timeout_s:
            if self.process.poll() is not None:
                raise RuntimeError(f"omlx serve ended with {self.process.returncode}:\n{self.log_text()}")
            try:
                httpx.get(f"{self.url}/api/version", timeout=5, trust_env=False).raise_for_status()
            except httpx.TransportError:
                time.sleep(0.02)
                continue
            self.started_in_s = time.monotonic() - begun
            return self
        self.kill()
        raise RuntimeError(f"omlx serve did not answer within {timeout_s} s:\n{self.log_text()}")

    def _limit(self) -> None:
        assert self.open_files_allowed is not None
        resource.setrlimit(resource.RLIMIT_NOFILE, (self.open_files_allowed,) * 2)

    def log_text(self) -> str:
        return self.log.read_text("utf-8", "replace") if self.log.exists() else ""

    def stop(self, *, timeout_s: float = 150.0) -> int:
        """SIGTERM; the exit code. A server that does not end in time is killed and that is an error."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()
                raise RuntimeError(f"omlx serve ignored SIGTERM for {timeout_s} s:\n{self.log_text()}") from None
        return self.process.returncode

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> ServerProcess:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
