"""A *job*: a command with its environment and its log, before any service manager has written it down."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import platformdirs

from omlx import settings
from omlx.errors import UserError
from omlx.settings import DEFAULT_PORT, Settings, bind_address

_PATHS = ("OMLX_MODELS", "OLLAMA_MODELS", "OMLX_PAGED_SSD_CACHE_DIR", "OMLX_CONFIG")
_BEYOND_SETTINGS = (
    "OMLX_CONFIG", "HF_TOKEN", "HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
    "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "CUDA_VISIBLE_DEVICES",
)  # fmt: skip
"""What a server reads beside its settings. A service manager gives its children none of the shell's variables."""


class ServiceError(UserError):
    """A server cannot be installed, started or ended; the message says why and what to do."""


class ServiceJob(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to keep running."""

    description: str
    command: list[str]
    environment: dict[str, str]
    log: Path
    folder: Path


def serve_command() -> list[str]:
    return [os.path.abspath(sys.executable), "-m", "omlx", "serve"]  # noqa: PTH100 (a venv's link must stay)


def log_file(settings: Settings) -> Path:
    """Where a server writes that has no terminal; one file per port."""
    _, port = bind_address(settings)
    name = "server.log" if port == DEFAULT_PORT else f"server-{port}.log"
    return Path(platformdirs.user_log_dir("omlx", appauthor=False)) / name


def absolute(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment with relative paths made absolute, for a process in another folder."""
    variables = dict(environ)
    for name in _PATHS:
        if variables.get(name):
            variables[name] = str(Path(variables[name].strip("\"'")).expanduser().absolute())
    if variables.get("PYTHONPATH"):
        parts = variables["PYTHONPATH"].split(os.pathsep)
        variables["PYTHONPATH"] = os.pathsep.join(str(Path(part).absolute()) for part in parts)
    return variables


def server_job(environ: Mapping[str, str]) -> ServiceJob:
    """`omlx serve` with the variables of `environ` that it reads. Raises SettingError or ServiceError for a bad one."""
    effective = settings.load({}, environ).settings
    names = {name for setting in settings.describe() for name in (setting.variable, setting.kind.ollama) if name}
    kept = {name: environ[name] for name in sorted(names.union(_BEYOND_SETTINGS)) if environ.get(name)}
    for name, value in kept.items():
        if any(ord(character) < 32 for character in value):
            raise ServiceError(f"the variable {name} has line breaks or control characters: a service cannot keep it")
    return ServiceJob(
        description="oMLX, an Ollama-compatible server for MLX models",
        command=serve_command(),
        environment=absolute(kept),
        log=log_file(effective),
        folder=Path.home(),
    )
