"""A *job*: a command with its environment and its log, before any service manager has written it down."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from omlx import settings
from omlx.service.autostart import absolute, log_file

_BEYOND_SETTINGS = (
    "OMLX_CONFIG", "HF_TOKEN", "HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
    "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "CUDA_VISIBLE_DEVICES",
)  # fmt: skip
"""What a server reads beside its settings. A service manager gives its children none of the shell's variables."""


class ServiceError(Exception):
    """The service cannot be written or started; the message says why and what to do."""


class ServiceJob(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to keep running."""

    description: str
    command: list[str]
    environment: dict[str, str]
    log: Path
    folder: Path


def server_job(environ: Mapping[str, str]) -> ServiceJob:
    """`omlx serve` with the variables of `environ` that it reads. Raises SettingError or ServiceError for a bad one."""
    effective = settings.load({}, environ).settings
    names = {name for found in settings.describe() for name in (found.variable, found.kind.ollama) if name}
    kept = {name: environ[name] for name in sorted(names.union(_BEYOND_SETTINGS)) if environ.get(name)}
    for name, value in kept.items():
        if any(ord(character) < 32 for character in value):
            raise ServiceError(f"the variable {name} has line breaks or control characters: a service cannot keep it")
    return ServiceJob(
        description="oMLX, an Ollama-compatible server for MLX models",
        command=[os.path.abspath(sys.executable), "-m", "omlx", "serve"],  # noqa: PTH100 (a venv's link must stay)
        environment=absolute(kept),
        log=log_file(effective),
        folder=Path.home(),
    )
