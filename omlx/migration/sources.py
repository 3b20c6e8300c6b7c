"""Sources: the places where a setting of Ollama's may stand on this machine. They are read, never changed.

A setting is a variable: of this shell, of a launchd job, of a systemd unit with its drop-ins; the app keeps a few in a
database of its own. An unreadable place counts as an empty one.
"""

from __future__ import annotations

import plistlib
import re
import shlex
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

_PREFIX: Final = "OLLAMA_"
_ALSO: Final = frozenset(
    {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GGML_VK_VISIBLE_DEVICES",
     "GPU_DEVICE_ORDINAL", "HSA_OVERRIDE_GFX_VERSION", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy",
     "https_proxy", "no_proxy"}
)  # fmt: skip
"""Other variables of a service that affect Ollama."""
_MOST_BYTES: Final = 1 << 20
"""The part of a unit or a property list that is read."""
_UNIT: Final = "ollama.service"
_LAUNCHD_FOLDERS: Final = ("Library/LaunchAgents", "/Library/LaunchAgents", "/Library/LaunchDaemons")
_APP: Final = "Library/Application Support/Ollama/db.sqlite"


class GivenVariable(NamedTuple):
    """A variable and its value. `origin`: "the environment", a file, "Ollama's app"."""

    name: str
    value: str
    origin: str


def find(environ: Mapping[str, str], home: Path, root: Path = Path("/")) -> list[GivenVariable]:
    """All settings of an Ollama, highest precedence first. `root`: the root of the file system."""
    return [
        *(
            GivenVariable(name, value, "the environment")
            for name, value in sorted(environ.items())
            if name.startswith(_PREFIX)
        ),
        *_systemd(home, root),
        *_launchd(home, root),
        *_app(home / _APP),
    ]


def unit_folders(home: Path, root: Path) -> list[Path]:
    """The folders of systemd units, highest precedence first."""
    system = ("etc/systemd/system", "run/systemd/system", "usr/local/lib/systemd/system", "usr/lib/systemd/system",
              "lib/systemd/system")  # fmt: skip
    return [home / ".config/systemd/user", *(root / folder for folder in system)]


def launchd_jobs(home: Path, root: Path) -> list[Path]:
    """Property lists with `ollama` in their names."""
    folders = [root / folder.lstrip("/") if folder.startswith("/") else home / folder for folder in _LAUNCHD_FOLDERS]
    return [path for folder in folders for path in sorted(folder.glob("*ollama*.plist"))]


def _systemd(home: Path, root: Path) -> Iterator[GivenVariable]:
    """Drop-ins in the order of their names after the unit; a later value of a variable replaces an earlier one.

    As for systemd, values of environment files go before those of `Environment`, wherever these stand.
    """
    folders = unit_folders(home, root)
    unit = next((folder / _UNIT for folder in folders if (folder / _UNIT).is_file()), None)
    drop_ins = {path.name: path for folder in reversed(folders) for path in (folder / f"{_UNIT}.d").glob("*.conf")}
    files = ([unit] if unit else []) + [drop_ins[name] for name in sorted(drop_ins)]
    variables: dict[str, dict[str, GivenVariable]] = {"Environment": {}, "EnvironmentFile": {}}
    for file in files:
        users = file.is_relative_to(home)
        for line in _service_lines(_text(file)):
            key, _, value = line.partition("=")
            key, value = key.strip(), _expanded(value.strip(), home if users else Path("/root"))
            if key not in variables:
                continue
            if not value:
                variables[key].clear()
            if key == "Environment":
                pairs = _assignments(value)
            else:
                named = Path(value.removeprefix("-"))
                pairs = _environment_file(named if named.is_relative_to(home) else root / str(named).lstrip("/"))
            origin = f"/{file.relative_to(root)}" if not users and file.is_relative_to(root) else str(file)
            relevant = [(name, text) for name, text in pairs if name.startswith(_PREFIX) or name in _ALSO]
            variables[key] |= {name: GivenVariable(name, text, origin) for name, text in relevant}
    yield from (variables["Environment"] | variables["EnvironmentFile"]).values()


def _expanded(text: str, home: Path) -> str:
    """Expand systemd's specifiers %h (home folder) and %%."""
    return re.sub("%([h%])", lambda found: str(home) if found[1] == "h" else "%", text)


def _service_lines(text: str) -> Iterator[str]:
    """The lines of the section [Service], with continuation lines joined."""
    inside = False
    for line in re.sub(r"\\\n", " ", text).splitlines():
        line = line.strip()
        if line.startswith("["):
            inside = line == "[Service]"
        elif inside and line and line[0] not in "#;":
            yield line


def _assignments(value: str) -> list[tuple[str, str]]:
    """`"A=1" B=2` → [("A", "1"), ("B", "2")]; empty if quotes do not match."""
    try:
        words = shlex.split(value)
    except ValueError:
        return []
    return [(name, text) for name, equals, text in (word.partition("=") for word in words) if equals]


def _environment_file(path: Path) -> list[tuple[str, str]]:
    lines = (line.strip() for line in _text(path).splitlines())
    return [pair for line in lines if line and line[0] not in "#;" for pair in _assignments(line)]


def _launchd(home: Path, root: Path) -> Iterator[GivenVariable]:
    for path in launchd_jobs(home, root):
        variables = _property_list(path).get("EnvironmentVariables")
        for name, value in (variables if isinstance(variables, dict) else {}).items():
            if isinstance(value, str) and (str(name).startswith(_PREFIX) or name in _ALSO):
                yield GivenVariable(str(name), value, str(path))


def _property_list(path: Path) -> dict[str, Any]:
    try:
        content = plistlib.loads(_bytes(path))
    except Exception:  # the parser raises many kinds of exceptions on a damaged file
        return {}
    return content if isinstance(content, dict) else {}


def _app(database: Path) -> Iterator[GivenVariable]:
    """The settings of Ollama's app."""
    if not database.is_file():
        return
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            row = connection.execute("SELECT * FROM settings LIMIT 1").fetchone()
    except sqlite3.Error:
        return
    settings = dict(row) if row else {}
    if settings.get("expose"):
        yield GivenVariable("OLLAMA_HOST", "0.0.0.0", "Ollama's app")  # noqa: S104
    if settings.get("models"):
        yield GivenVariable("OLLAMA_MODELS", str(settings["models"]), "Ollama's app")
    if isinstance(settings.get("context_length"), int) and settings["context_length"] > 0:
        yield GivenVariable("OLLAMA_CONTEXT_LENGTH", str(settings["context_length"]), "Ollama's app")


def _bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES) if path.is_file() else b""
    except OSError:
        return b""


def _text(path: Path) -> str:
    return _bytes(path).decode("utf-8", "replace")
