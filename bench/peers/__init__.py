"""Other servers on the same model, each in an environment of its own: how to install and how to start them.

`python -m bench.peers.install` makes the environments under `.venv-peers`. On a machine without a package index a peer
runs on this Python where that has its module (mlx_lm always has: it is a dependency of oMLX).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ENVIRONMENTS = ROOT / ".venv-peers"
_PLACES = ["--decode-concurrency", "256", "--prompt-concurrency", "32"]
"""As many requests at once as oMLX takes."""
_OWN_MLX = "mlx" if sys.platform == "darwin" else "mlx[cpu]"


class Model(NamedTuple):
    """What all servers of a run load: `mlx` a model folder, `gguf` the same weights as a file, if there is one."""

    name: str
    mlx: Path
    gguf: Path | None
    context: int


class Peer(NamedTuple):
    """A server somebody else made. `command(python, model, port)` starts it; requests call the model `called(model)`.

    `bare` are packages that are installed without their dependencies, where those would bring gigabytes that serving a
    text model does not touch; `packages` then has what it does touch.
    """

    title: str
    module: str
    packages: tuple[str, ...]
    command: Callable[[str, Model, int], list[str]]
    called: Callable[[Model], str]
    bare: tuple[str, ...] = ()
    mlx: bool = True
    switches: bool = False
    """Loads whatever model a request names."""


def _mlx_lm(python: str, model: Model, port: int) -> list[str]:
    return [python, str(HERE / "launch.py"), "mlx_lm.server", "--model", str(model.mlx), "--port", str(port), *_PLACES]


def _mlx_vlm(python: str, model: Model, port: int) -> list[str]:
    return [python, str(HERE / "launch.py"), "mlx_vlm.server", "--model", str(model.mlx), "--port", str(port)]


def _vllm_mlx(python: str, model: Model, port: int) -> list[str]:
    words = ["serve", str(model.mlx), "--port", str(port), "--host", "127.0.0.1", "--continuous-batching"]
    return [python, str(HERE / "launch.py"), "vllm_mlx.cli", *words, "--served-model-name", model.name]


def _llama_cpp(python: str, model: Model, port: int) -> list[str]:
    return [python, str(HERE / "llama_cpp.py"), str(model.gguf), str(port), str(model.context)]


PEERS = {
    "mlx_lm": Peer(
        title="mlx_lm.server", module="mlx_lm", packages=(f"{_OWN_MLX}~=0.32.4", "mlx-lm~=0.32.2"),
        command=_mlx_lm, called=lambda model: str(model.mlx), switches=True,
    ),
    "mlx_vlm": Peer(
        title="mlx_vlm.server", module="mlx_vlm",
        packages=(f"{_OWN_MLX}~=0.32.4", "mlx-lm~=0.32.2", "mlx-vlm~=0.7.10"),
        command=_mlx_vlm, called=lambda model: str(model.mlx), switches=True,
    ),
    "vllm-mlx": Peer(
        title="vllm-mlx", module="vllm_mlx", bare=("vllm-mlx==0.6.0",),
        packages=(
            f"{_OWN_MLX}~=0.32.4", "mlx-lm>=0.31.3,<0.32", "mlx-vlm>=0.6.5", "fastapi", "uvicorn", "prometheus-client",
            "mcp", "jsonschema", "llguidance", "lm-format-enforcer", "pytz", "psutil", "requests", "tabulate",
            "opencv-python-headless",
        ),
        command=_vllm_mlx, called=lambda model: model.name,
    ),
    "llama.cpp": Peer(
        title="llama.cpp (xllamacpp)", module="xllamacpp", packages=("xllamacpp",), mlx=False,
        command=_llama_cpp, called=lambda model: model.name,
    ),
}  # fmt: skip


def python_of(name: str) -> str:
    """The interpreter that has this peer. RuntimeError, with the command that installs it, where none has."""
    own = ENVIRONMENTS / name / "bin" / "python"
    if own.exists():
        return str(own)
    if importlib.util.find_spec(PEERS[name].module) is not None:
        return sys.executable
    raise RuntimeError(f"{PEERS[name].title} is not installed: run `python -m bench.peers.install {name}`")


def version_of(name: str) -> str:
    """The peer's version and, where it stands on MLX, that of MLX."""
    peer = PEERS[name]
    modules = [peer.module.replace("_", "-"), *(("mlx",) if peer.mlx else ())]
    code = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    done = subprocess.run([python_of(name), "-c", code, *modules], capture_output=True, text=True, check=True)
    own, *mlx = done.stdout.split()
    return own + (f", mlx {mlx[0]}" if mlx else "")


def environment(home: Path) -> dict[str, str]:
    """What a peer's process sees: a home of its own (vllm-mlx keeps a cache there), no network, no setting of oMLX."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMLX_", "OLLAMA_"))}
    return kept | {"HOME": str(home), "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}


def install(name: str) -> None:
    """Make or update the peer's environment."""
    peer, folder = PEERS[name], ENVIRONMENTS / name
    python = folder / "bin" / "python"
    if not python.exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--upgrade"]
    blas = ("ngsolve-openblas>=0.3.33",) if peer.mlx and sys.platform == "linux" else ()
    if peer.bare:
        subprocess.run([*pip, "--no-deps", *peer.bare], check=True)
    subprocess.run([*pip, *peer.packages, *blas], check=True)
