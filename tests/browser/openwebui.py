"""The real Open WebUI, from PyPI, for tests: `python -m tests.browser.openwebui` installs it into `.venv-openwebui`.

It is given the environment of contrib/open-webui/compose.yaml: what is tested is what is recommended. Only addresses,
the embedding model and the sign-in differ. About 3 GB, some minutes to install, up to a minute to start.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import yaml

from tests.support.server import free_port

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "contrib" / "open-webui" / "compose.yaml"
FOLDER = ROOT / ".venv-openwebui"
PROGRAM = FOLDER / "bin" / "open-webui"
TORCH = "torch==2.13.0"
"""First, and the CPU's where the index has one: Open WebUI alone would bring a CUDA build of several gigabytes."""
START_S = 600
"""The first start makes its database; a busy machine takes minutes for that."""


def recommended() -> dict[str, str]:
    """The environment of the compose file."""
    found = yaml.safe_load(COMPOSE.read_text("utf-8"))["services"]["open-webui"]["environment"]
    return {name: str(value) for name, value in found.items()}


def version() -> str:
    """The one the compose file names."""
    image = yaml.safe_load(COMPOSE.read_text("utf-8"))["services"]["open-webui"]["image"]
    return str(image).rpartition(":v")[2]


class OpenWebUi:
    """Open WebUI in front of `ollama`, one or more URLs; nobody signs in, and every start begins anew."""

    def __init__(self, folder: Path, ollama: list[str], *, embedder: str) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.log = folder / "open-webui.log"
        self.folder = folder
        self._command = [str(PROGRAM), "serve", "--host", "127.0.0.1", "--port", str(port)]
        self._env: Mapping[str, str] = {
            **os.environ,
            **recommended(),
            "OLLAMA_BASE_URLS": ";".join(ollama),
            "RAG_OLLAMA_BASE_URL": ollama[0],
            "RAG_EMBEDDING_MODEL": embedder,
            "OLLAMA_API_CONFIGS": "",
            "WEBUI_AUTH": "False",
            "WEBUI_SECRET_KEY": "test",
            "ENABLE_PERSISTENT_CONFIG": "False",
            "DATA_DIR": str(folder),
            "HOME": str(folder),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(self._command, env=self._env, cwd=self.folder, stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                if httpx.get(f"{self.url}/health", timeout=5, trust_env=False).is_success:
                    return self
            except httpx.TransportError:
                time.sleep(0.5)
        self._end()
        raise RuntimeError(f"Open WebUI did not start:\n{self.log.read_text('utf-8', 'replace')[-3000:]}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def install() -> None:
    python = FOLDER / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(FOLDER)], check=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    for wanted in (TORCH, f"open-webui=={version()}"):
        subprocess.run([*pip, wanted], check=True)


if __name__ == "__main__":
    install()
