"""Loading: each setting from the first place that has it, read by the rules of its kind."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

import platformdirs

from omlx.errors import UserError
from omlx.settings.address import has_usable_port, parse_host
from omlx.settings.fields import Setting, Settings, describe
from omlx.units import format_duration, parse_duration, parse_keep_alive, parse_size
from omlx.urls import without_credentials


class SettingError(UserError):
    """A setting has a value that cannot be used; the message names the setting, the value and what is expected."""


class Loaded(NamedTuple):
    """The effective settings and, for each, where its value came from ("flag", a variable, a file, "default")."""

    settings: Settings
    sources: dict[str, str]
    warnings: tuple[str, ...] = ()
    """Of values that are used otherwise than they were written, as Ollama does."""


def config_file() -> Path:
    """The TOML file that is read when it exists, where OMLX_CONFIG names no other."""
    return Path(platformdirs.user_config_dir("omlx", appauthor=False)) / "config.toml"


def load(flags: Mapping[str, Any], environ: Mapping[str, str], file: Path | None = None) -> Loaded:
    """Settings by precedence. `flags` holds only what the user gave, by field name. Raises SettingError."""
    named = environ.get("OMLX_CONFIG")
    path = Path(named) if named else (file or config_file())
    if named and not path.exists():
        raise SettingError(f"the config file {path} (from env OMLX_CONFIG) does not exist")
    from_file = _read_file(path)
    _refuse_former_names(environ)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    warnings: list[str] = []
    for setting in describe():
        value, source = _first_given(setting, flags, environ, from_file, path)
        sources[setting.name] = source
        values[setting.name] = setting.default if source == "default" else _parse(setting, value, source)
        if setting.kind.parse == "host" and source != "default" and not has_usable_port(str(value)):
            warnings.append(f"{source.removeprefix('env ')} {value} has no usable port: {values[setting.name]} is used")
    return Loaded(Settings(**values), sources, tuple(warnings))


_RENAMED = {"api_keys": "api_key_file"}
"""Settings by former names: to ignore one could open the server to everybody."""


def _refuse_former_names(environ: Mapping[str, str]) -> None:
    for former, name in _RENAMED.items():
        if environ.get(f"OMLX_{former.upper()}"):
            raise SettingError(f"OMLX_{former.upper()} is called OMLX_{name.upper()} now")


def _first_given(
    setting: Setting, flags: Mapping[str, Any], environ: Mapping[str, str], from_file: Mapping[str, Any], path: Path
) -> tuple[Any, str]:
    if flags.get(setting.name) is not None:
        return flags[setting.name], f"flag {setting.flag}"
    for variable in (setting.variable, setting.kind.ollama):
        # Go trims blanks and quotes around a value; service files are full of both.
        text = environ.get(variable, "").strip(" \t\r\n\"'") if variable else ""
        if text:
            return text, f"env {variable}"
    if setting.name in from_file:
        return from_file[setting.name], str(path)
    return None, "default"


def _read_file(path: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, OSError, UnicodeDecodeError) as error:
        raise SettingError(f"the config file {path} cannot be read: {error}") from error
    for former, name in _RENAMED.items():
        if former in content:
            raise SettingError(f"the config file {path} sets {former}, which is called {name} now")
    unknown = sorted(set(content) - set(Settings.__struct_fields__))
    if unknown:
        raise SettingError(f"the config file {path} sets {', '.join(unknown)}, which oMLX does not have")
    return content


_TRUE, _FALSE = {"1", "t", "true", "yes", "on"}, {"0", "f", "false", "no", "off"}


def _parse(setting: Setting, value: Any, source: str) -> Any:
    try:
        return _convert(setting, value, lenient=source == f"env {setting.kind.ollama}")
    except (ValueError, TypeError) as error:
        shown = "…" if setting.kind.secret else without_credentials(repr(value))
        raise SettingError(f"{setting.name} = {shown} (from {source}) cannot be used: {error}") from error


def _convert(setting: Setting, value: Any, *, lenient: bool) -> Any:
    """The value as its setting has it. `lenient`: it comes from Ollama's variable, which takes more."""
    match setting.kind.parse:
        case "keep_alive":
            seconds = parse_keep_alive(value)
            return math.inf if seconds == 0 and setting.kind.zero_is_never else seconds
        case "duration":
            return _duration(value, setting.kind.most)
        case "size":
            return value if isinstance(value, int) else parse_size(str(value))
        case "host":
            if not lenient and not has_usable_port(str(value)):
                raise ValueError("its port must be a number from 0 to 65535")
            return parse_host(str(value))
        case "path":
            return str(Path(value).expanduser())
        case "watts":
            return _watts(value)
        case "memory":
            return _memory(str(value).strip())
        case "list" | "keep_alives":
            items = value if isinstance(value, list) else str(value).split(",")
            values = [item.strip() for item in items if item.strip()]
            if setting.kind.parse == "keep_alives":
                for item in values:
                    _check_keep_alive(item)
            return values
    if setting.type is bool:
        return _boolean(value, lenient=lenient)
    if setting.type is int:
        try:
            number = int(value)
        except ValueError:
            raise ValueError("it must be a whole number") from None
        if number < 0:
            raise ValueError("it must not be negative")
        if number and setting.kind.between and not setting.kind.between[0] <= number <= setting.kind.between[1]:
            raise ValueError("it must be 0 or between {} and {}".format(*setting.kind.between))
        return number
    if setting.type is float:
        amount = float(value)
        if not 0 <= amount < math.inf:
            raise ValueError("it must be a number from 0 up")
        return amount
    if get_origin(setting.type) is Literal:
        if value not in get_args(setting.type):
            raise ValueError(f"it must be one of {', '.join(get_args(setting.type))}")
        return value
    return str(value)


def _duration(value: Any, most: float) -> float:
    """Seconds, from a duration ("100ms") or a number of seconds."""
    try:
        seconds = float(value)
    except ValueError:
        seconds = parse_duration(str(value))
    if not 0 <= seconds <= most:
        raise ValueError(f"it must be a duration from 0 to {format_duration(most)}, such as 100ms or 0.5s")
    return seconds


def _watts(value: Any) -> float:
    """Watts, from "30W", "30" or a number."""
    text = str(value).strip().removesuffix("W").removesuffix("w").rstrip()
    try:
        watts = float(text)
    except ValueError:
        watts = -1.0
    if not 0 <= watts < math.inf:
        raise ValueError("it must be a power in watts, such as 30W; 0: no limit")
    return watts


def _check_keep_alive(item: str) -> None:
    name, equals, duration = item.rpartition("=")
    if not equals or not name or not duration:
        raise ValueError(f'"{item}" must be NAME=DURATION, such as qwen3:8b=1h')
    parse_keep_alive(duration)


def _memory(text: str) -> str:
    """A memory cap as it was written, once it is known to mean something."""
    if text in {"", "auto"}:
        return text
    if text.endswith("%"):
        if not 0 < float(text[:-1]) <= 100:
            raise ValueError("a percentage is above 0 and at most 100")
    else:
        parse_size(text)
    return text


def _boolean(value: Any, *, lenient: bool) -> bool:
    """Ollama takes any other text in its variables as true (`OLLAMA_DEBUG=2` is a level); elsewhere it is refused."""
    if isinstance(value, bool):
        return value
    text = str(value).lower()
    if text in _TRUE or (lenient and text not in _FALSE):
        return True
    if text in _FALSE:
        return False
    raise ValueError("it must be true or false")
